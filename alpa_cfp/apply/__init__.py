"""Writing a plan into a module."""
