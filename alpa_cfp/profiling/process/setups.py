"""The setup of a worker that stands in for this process: the same devices, and the same settings of JAX.

Takes the client of a mesh; gives a `Setup`, and in the worker applies its settings to JAX.
"""

from collections.abc import Mapping
from enum import Enum

import jax

from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling.process.protocol import Setup
from alpa_cfp.spmd.compile.executable import Client


def setup_of(client: Client) -> Setup:
    """The setup of a worker with the devices of `client` and the current settings of JAX.

    Raises:
        ProfilingError: the devices are of several processes.
    """
    devices = client.devices()
    if len({device.process_index for device in devices}) > 1:
        raise ProfilingError.no_worker("the mesh has devices of several processes")
    ids, kinds = tuple(device.id for device in devices), tuple(device.device_kind for device in devices)
    if devices[0].process_index != 0:
        # The worker numbers its devices from 0, and of several processes only the first one does.
        here = sorted(device.id for device in devices[0].client.local_devices())
        ids = tuple(map(here.index, ids))
    return Setup(client.platform, ids, kinds, jax_config())


def jax_config() -> dict[str, bool | int | float | str | None]:
    """The settings of JAX in this thread that another process can have, as plain values; see `set_up_jax`."""
    return {
        # An enum of JAX would have to be imported by every process that passes the setup on.
        name: value.value if isinstance(value, Enum) else value
        for name, value in jax.config.values.items()
        # The platform is in the setup: of all platforms that this process uses, the worker has only that one. On a
        # cluster of GPUs this process is on its CPU.
        if name not in ("jax_platforms", "jax_platform_name") and isinstance(value, bool | int | float | str | None)
    }


def set_up_jax(settings: Mapping[str, bool | int | float | str | None]) -> None:
    """Apply the settings of `jax_config` in this process."""
    for name, value in settings.items():
        current = jax.config.values[name]
        wanted = type(current)(value) if isinstance(current, Enum) else value
        if current != wanted:
            jax.config.update(name, wanted)
