"""The kinds of typed random keys, by the names that `jax.random.wrap_key_data` takes."""

import functools
from typing import Any

import jax

from alpa_cfp.spmd import errors

_KINDS = ("threefry2x32", "rbg", "unsafe_rbg")


def is_key(value: Any) -> bool:
    """Whether this has the dtype of typed random keys: an array, an abstract value, a variable's `aval`."""
    return hasattr(value, "dtype") and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


@functools.cache
def key_kind(dtype: Any) -> str:
    """The kind of keys of `dtype`.

    Raises:
        errors.KeyKindError: it is none of jax's own.
    """
    for kind in _KINDS:
        if jax.random.key(0, impl=kind).dtype == dtype:
            return kind
    raise errors.KeyKindError(dtype, _KINDS)
