"""`alpa-cfp bench`: one model on one mesh by several methods, held against the serial run and timed side by side."""
