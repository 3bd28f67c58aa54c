"""`jax._src.lib.xla_extension`: for alpa that is the extension of its forked jaxlib, done here in Python."""

ALIAS_OF = "alpa_on_jax.xla_extension"
