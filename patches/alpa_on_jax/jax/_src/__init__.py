"""Completes modules of `jax._src`, JAX's private part, of which alpa imports a lot."""
