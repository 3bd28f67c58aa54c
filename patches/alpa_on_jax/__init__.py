"""Alpa 0.2.3, unmodified from PyPI, on stock JAX."""
