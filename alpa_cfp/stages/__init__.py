"""Costs of pipeline stages, composed from those of their segments."""
