"""Where profiles come from: `CFPOption(costs=...)`.

Takes an option, what alpa says of the mesh, and the database; gives a function from modules to profiles: measured on
the mesh's devices, or as they were recorded; none for estimates. Invariant: a source leaves no process behind.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from alpa_cfp.choosing import Profiles
from alpa_cfp.database import Profile, ProfileDatabase, ProfileKey
from alpa_cfp.errors import NoDevicesError
from alpa_cfp.profiling import DeviceDescription, MeasureOptions, Measurer, Profiler, key_of, recorded_devices, replay
from alpa_cfp.profiling.submeshes import measured_submesh
from alpa_on_jax.xla_extension.executable import Client
from alpa_on_jax.xla_extension.hlo_module import HloModule
from alpa_on_jax.xla_extension.planner import PlanRequest
from alpa_on_jax.xla_extension.sharding import LogicalMesh

if TYPE_CHECKING:
    from alpa_cfp.option import CFPOption


class Source:
    """Gives the profiles of modules, and knows of which it was asked.

    Args:
        devices: The devices that the profiles are of.
        profiles: Gives them.

    Attributes:
        keys: Those of all profiles that it was asked for.
    """

    def __init__(self, devices: DeviceDescription, profiles: Profiles):
        self.devices, self._profiles = devices, profiles
        self.keys: list[ProfileKey] = []

    def __call__(self, modules: Sequence[HloModule], samples: int | None = None, /) -> Sequence[Profile | None]:
        self.keys += [key_of(module, self.devices)[0] for module in modules]
        return self._profiles(modules, samples)


@contextlib.contextmanager
def profile_source(
    option: "CFPOption", request: PlanRequest, mesh: LogicalMesh, database: ProfileDatabase
) -> Iterator[Source | None]:
    """For the time of the context, the function that gives the profiles of modules; None where costs are estimates.

    Raises:
        NoDevicesError: costs are to be measured, and the mesh has no devices.
        ReplayError: the database has nothing of such a mesh.
    """
    if option.costs == "estimate":
        yield None
    elif option.costs == "replay":
        devices = recorded_devices(database, mesh.shape, device_kind=option.device_kind)
        yield Source(devices, _recorded(devices, database))
    else:
        options = MeasureOptions(option.samples, seed=option.seed, progress=option.progress)
        with Profiler(_measured_mesh(request.logical_mesh, mesh, options), database, options) as profiler:
            yield Source(profiler.devices, profiler.measure)


def _recorded(devices: DeviceDescription, database: ProfileDatabase) -> Profiles:
    def profiles(modules: Sequence[HloModule], samples: int | None = None, /) -> list[Profile | None]:
        del samples  # as many as were recorded
        found = [database.get(key_of(module, devices)[0]) for module in modules]
        # What was left out because something else was better then is left out now; if all is, it is another program.
        return found if any(found) else list(replay(modules, devices, database))

    return profiles


def _measured_mesh(
    logical_mesh: Any, mesh: LogicalMesh, options: MeasureOptions
) -> Client | tuple[Measurer, DeviceDescription]:
    """What a profiler measures on: the devices in the order of the logical mesh."""
    physical, numbers = logical_mesh.physical_mesh, [int(number) for number in logical_mesh.id_mesh.flatten()]
    if getattr(physical, "workers", None):
        from alpa_cfp.profiling.ray_hosts import measurer_of

        return measurer_of(physical, numbers, options)
    virtual = getattr(logical_mesh, "virtual_mesh", None)
    if physical is None and virtual is not None:
        return measured_submesh(virtual, numbers, options)
    devices = getattr(physical, "devices", None)
    if not devices or any(device is None for device in devices):
        raise NoDevicesError(mesh.shape)
    return Client([devices[number] for number in numbers])
