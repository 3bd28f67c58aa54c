"""Completes modules of `jax.experimental`."""
