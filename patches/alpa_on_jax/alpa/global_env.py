"""Replacements in `alpa.global_env`: which backend is the default, what Ray calls its devices, options, XLA flags.

Alpa appends flags to XLA_FLAGS that current XLA does not know, and XLA ends the process when it reads an unknown flag.
So they are taken off again; what the user has set there stays. No JAX backend is started to find out which there are.
"""

import contextlib
import os
from collections.abc import Iterator
from importlib import metadata
from types import ModuleType
from typing import Any

import jax

from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.cluster.hosts import RESOURCE_NAMES
from alpa_on_jax.ray_mesh.failures.limits import Limits
from alpa_on_jax.replacing import replace_in_class

# What alpa appends while it is imported, as one string.
_APPENDED_FLAGS = " --xla_gpu_enable_async_all_reduce=false --xla_gpu_force_compilation_parallelism=8"


@contextlib.contextmanager
def temporarily(config: Any, **values: Any) -> Iterator[None]:
    """For the time of the context alpa's `global_config` has other values."""
    before = {name: getattr(config, name) for name in values}
    vars(config).update(values)
    try:
        yield
    finally:
        vars(config).update(before)


def apply(module: ModuleType) -> None:
    """Give the user's XLA_FLAGS back, make `global_config.backend` one that this process can use, refuse an option."""
    flags = os.environ["XLA_FLAGS"].removesuffix(_APPENDED_FLAGS)
    if flags:
        os.environ["XLA_FLAGS"] = flags
    else:
        del os.environ["XLA_FLAGS"]
    config = module.global_config
    config.backend = "gpu" if config.has_cuda and _jax_can_use_cuda() else "cpu"
    config.host_limits = Limits()

    def ray_accelerator_name(self: Any) -> str:
        """What a device is called in a Ray cluster."""
        return RESOURCE_NAMES[self.backend]

    original_setattr = module.GlobalConfig.__setattr__

    def __setattr__(self: Any, name: str, value: Any) -> None:
        """Set an option.

        Raises:
            errors.NeedsForkError: it is `enable_overlapping`. Alpa reads it only where it is too late to say so.
        """
        if name == "enable_overlapping" and value:
            raise errors.NeedsForkError.overlapping()
        original_setattr(self, name, value)

    replace_in_class(module.GlobalConfig, __setattr__, ray_accelerator_name=property(ray_accelerator_name))


def _jax_can_use_cuda() -> bool:
    platforms = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
    allowed = not platforms or bool({"cuda", "gpu"} & set(platforms.split(",")))
    return allowed and any("cuda" in plugin.name for plugin in metadata.entry_points(group="jax_plugins"))
