"""In Python, what Alpa's forked jaxlib offered as `jax._src.lib.xla_extension`."""

from jax._src.lib import xla_client as _xla_client

from alpa_on_jax.jax._src.device_array import DeviceArray

__all__ = ["Client", "DeviceArray", "HloModule", "HloSharding", "XlaComputation", "get_alpa_jaxlib_version"]

Client = _xla_client.Client
HloSharding = _xla_client.HloSharding


class HloModule:
    """Placeholder until the module value is here."""


class XlaComputation:
    """Placeholder until the module value is here."""


def get_alpa_jaxlib_version() -> str:
    """The version of the forked jaxlib that this package stands in for."""
    return "0.2.2"
