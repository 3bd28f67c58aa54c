"""Selection of a plan: the search problem, which candidates are measured, trials of whole plans."""
