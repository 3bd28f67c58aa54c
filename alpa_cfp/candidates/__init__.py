"""What can become of a block: its program under each strategy, with the work that it is."""
