"""Completes modules of `jax.interpreters`."""
