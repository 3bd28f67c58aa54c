"""Names that left `jax.interpreters.xla`."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from jax._src import core, dtypes
from jax.api_util import shaped_abstractify

from alpa_on_jax.jax._src.device_array import DeviceArray, _CppDeviceArray, _DeviceArray

__all__ = [
    "DeviceArray",
    "_CppDeviceArray",
    "_DeviceArray",
    "abstractify",
    "canonicalize_dtype",
    "pytype_aval_mappings",
    "register_translation",
    "translations",
    "xops",
]

abstractify = shaped_abstractify
canonicalize_dtype = dtypes.canonicalize_value
pytype_aval_mappings = core.pytype_aval_mappings

# Rules for the XLA builder, which stock JAX does not have. Alpa writes them and JAX never reads them: the lowering of
# alpa's primitives is registered where they are replaced (`alpa_on_jax/alpa`).
translations: dict[core.Primitive, Callable[..., Any]] = {}
xops = SimpleNamespace()


def register_translation(prim: core.Primitive, rule: Callable[..., Any], *, platform: str | None = None) -> None:
    """Keep a rule for the XLA builder, which nothing will ask for."""
    translations[prim] = rule
