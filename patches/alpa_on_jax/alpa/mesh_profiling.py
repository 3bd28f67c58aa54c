"""Replacements in `alpa.mesh_profiling`: measuring single ops, whose loops alpa builds by XlaBuilder, is refused."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from alpa_on_jax import errors
from alpa_on_jax.replacing import replace


def apply(module: ModuleType) -> None:
    """Refuse at the call, rather than in a thread of a host, whose error alpa takes for a time of infinity."""
    replace(module, profile_all=refused("DeviceCluster.profile_all"), profile_hlo_ops=refused("profile_hlo_ops"))


def refused(name: str) -> Callable[..., NoReturn]:
    """A function in the place of alpa's function or method `name`."""

    def function(*args: Any, **options: Any) -> NoReturn:
        """Not available.

        Raises:
            errors.NeedsForkError: always.
        """
        raise errors.NeedsForkError.profiling(name)

    return function
