"""Makes the report of a plan from the values of its planning: names, strategies, costs, communication."""
