"""What a process must have that measures in the place of this one: the same devices, and JAX set alike.

Takes the client of a mesh; gives a `Setup`, and there does what it says of JAX.
"""

from collections.abc import Mapping
from enum import Enum

import jax

from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling.process.protocol import Setup
from alpa_cfp.spmd.compile.executable import Client


def setup_of(client: Client) -> Setup:
    """What a process needs that stands in for this one's devices of `client`, with JAX set as it is now.

    Raises:
        ProfilingError: the devices are not of this process alone.
    """
    devices = client.devices()
    if any(device.process_index != 0 for device in devices):
        raise ProfilingError.no_worker("the mesh has devices of several processes")
    ids, kinds = tuple(device.id for device in devices), tuple(device.device_kind for device in devices)
    return Setup(client.platform, ids, kinds, jax_config())


def jax_config() -> dict[str, bool | int | float | str | None]:
    """The settings of JAX in this thread that another process can have, as plain values; see `set_up_jax`."""
    return {
        # An enum of JAX would have to be imported by everyone who passes it on.
        name: value.value if isinstance(value, Enum) else value
        for name, value in jax.config.values.items()
        # The setup says the platform: of all those that this process uses, the worker has only one. On a cluster of
        # GPUs this process is on its CPU.
        if name not in ("jax_platforms", "jax_platform_name") and isinstance(value, bool | int | float | str | None)
    }


def set_up_jax(settings: Mapping[str, bool | int | float | str | None]) -> None:
    """Set JAX in this process as it is in the one that gave `jax_config`."""
    for name, value in settings.items():
        now = jax.config.values[name]
        wanted = type(now)(value) if isinstance(now, Enum) else value
        if now != wanted:
            jax.config.update(name, wanted)
