"""`jax.linear_util`, which is `jax.extend.linear_util` now, with a `wrap_init` that needs no `debug_info`."""

from collections.abc import Callable
from typing import Any

from jax._src import api_util
from jax._src.linear_util import (
    DebugInfo,
    Store,
    StoreException,
    WrappedFun,
    cache,
    merge_linear_aux,
    transformation,
    transformation_with_aux,
)
from jax._src.linear_util import wrap_init as _wrap_init

__all__ = [
    "Store",
    "StoreException",
    "WrappedFun",
    "cache",
    "merge_linear_aux",
    "transformation",
    "transformation_with_aux",
    "wrap_init",
]


def wrap_init(f: Callable, params: dict[str, Any] | None = None, *, debug_info: DebugInfo | None = None) -> WrappedFun:
    """Wrap `f` for transformation; without `debug_info`, JAX's messages name `f` but not its arguments."""
    if debug_info is None:
        debug_info = DebugInfo("parallelize", api_util.fun_sourceinfo(f), None, None)
    return _wrap_init(f, params, debug_info=debug_info)
