"""Planners of other papers over the same program: they choose among CFP's candidates by their own search and costs."""
