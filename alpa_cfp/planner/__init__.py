"""The way of a module through CFP."""
