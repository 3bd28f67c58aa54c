"""Completes `jaxlib`."""
