"""Replacements in `alpa.mesh_profiling`: measuring single ops, whose loops alpa builds by XlaBuilder, is refused."""

from types import ModuleType
from typing import Any, NoReturn

from alpa_on_jax import errors
from alpa_on_jax.replacing import replace


def apply(module: ModuleType) -> None:
    """Refuse at the call, rather than in a thread of a host, whose error alpa takes for a time of infinity."""

    def profile_all(*args: Any, **options: Any) -> NoReturn:
        """Not available.

        Raises:
            errors.NeedsForkError: always.
        """
        raise errors.NeedsForkError.profiling("DeviceCluster.profile_all")

    def profile_hlo_ops(*args: Any, **options: Any) -> NoReturn:
        """Not available.

        Raises:
            errors.NeedsForkError: always.
        """
        raise errors.NeedsForkError.profiling("profile_hlo_ops")

    replace(module, profile_all, profile_hlo_ops)
