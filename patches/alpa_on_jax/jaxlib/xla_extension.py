"""`jaxlib.xla_extension`, the same module as `jax._src.lib.xla_extension`."""

ALIAS_OF = "alpa_on_jax.xla_extension"
