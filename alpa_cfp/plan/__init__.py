"""The plan as data: the plan itself, its report, its signature, its cache."""
