"""Completes `jax._src.lib`: the names of jaxlib's modules."""

from jax._src import xla_bridge

from alpa_on_jax import xla_extension

__all__ = ["xla_bridge", "xla_extension"]
