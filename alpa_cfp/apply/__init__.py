"""Writes a plan into a module."""
