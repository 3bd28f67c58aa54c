"""Profiles of programs for devices that are not here: compiled by their compiler, their seconds by a model."""
