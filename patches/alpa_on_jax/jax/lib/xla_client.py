"""`jax.lib.xla_client` is `jaxlib.xla_client`."""

ALIAS_OF = "jaxlib.xla_client"
