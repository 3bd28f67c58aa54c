"""Completes `jax._src.lib`: the names of jaxlib's modules, each in a file of its own."""
