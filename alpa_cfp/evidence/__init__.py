"""Collects, while a plan is made, what its report is to say."""
