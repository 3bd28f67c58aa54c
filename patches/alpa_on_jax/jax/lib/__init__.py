"""Completes `jax.lib`."""
