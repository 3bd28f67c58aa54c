"""`jax._src.lib.xla_bridge` is `jax._src.xla_bridge` now."""

ALIAS_OF = "jax._src.xla_bridge"
