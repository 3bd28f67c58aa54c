"""Names that `jax._src.api` had: the check of a callable, and JAX's flags."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from jax._src import api_util

__all__ = ["FLAGS", "_check_callable"]

# Alpa sets `experimental_cpp_jit` in its workers; JAX has neither the flag nor what it was needed for any more.
FLAGS = SimpleNamespace()


def _check_callable(fun: Callable[..., Any]) -> None:
    """Raise TypeError unless `fun` can be called and is no generator function."""
    api_util.check_callable(fun)
