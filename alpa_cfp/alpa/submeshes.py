"""What measures for a mesh that is only planned for: a submesh of a pipeline, for which nothing runs yet.

Takes alpa's virtual mesh; gives what measures on devices like its own: those of this process, those of its processes if
it has been launched since, or free devices of the cluster. Imports alpa when it is called, and Ray where it is used.
"""

import time
from collections.abc import Sequence
from typing import Any

import jax

from alpa_cfp.errors import ProfilingError
from alpa_cfp.planner.request import LocalDevices
from alpa_cfp.profiling.keys import DeviceDescription
from alpa_cfp.profiling.meshes.slots import Slot
from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.profiler import Measurer
from alpa_cfp.spmd.compile.executable import Client
from alpa_on_jax.in_process.place import is_here

# Ray knows a moment late that devices are free again.
_FREE_S = 20.0
_LOOK_AGAIN_S = 0.2


def measured_submesh(
    virtual: Any, positions: Sequence[int], options: MeasureOptions
) -> Client | tuple[Measurer, DeviceDescription]:
    """What a profiler measures on.

    Args:
        virtual: Alpa's `VirtualPhysicalMesh`.
        positions: For each device of the logical mesh, in its order, its place among the devices of all hosts.
        options: How to measure.

    Raises:
        ProfilingError: the cluster has no such submesh free.
    """
    if is_here(virtual):
        return Client([jax.local_devices()[position] for position in positions])
    from alpa_cfp.alpa.ray_hosts import measurer_of, pool_on
    from alpa_cfp.alpa.ray_slots import device_kind_of

    if virtual.launched_physical_mesh is not None:
        return measurer_of(virtual.launched_physical_mesh, positions, options)
    slots = _free_slots(virtual, options.slots)
    return pool_on(slots, (device_kind_of(slots[0]),) * virtual.num_devices, positions, options)


def memory_of_submesh(virtual: Any) -> int:
    """What a device of a mesh that is only planned for may hold, in bytes.

    Args:
        virtual: Alpa's `VirtualPhysicalMesh`.

    Raises:
        ProfilingError: the cluster has no such submesh free.
    """
    if is_here(virtual):
        devices = tuple(jax.local_devices()[: virtual.num_devices])
        return LocalDevices(devices, (len(devices),)).memory_bytes()
    if virtual.launched_physical_mesh is not None:
        return virtual.launched_physical_mesh.get_available_memory()
    from alpa_cfp.alpa.ray_slots import memory_of

    return memory_of(_free_slots(virtual, 1)[0])


def _free_slots(virtual: Any, most: int) -> list[Slot]:
    from alpa_cfp.alpa.ray_slots import free_submeshes

    end = time.monotonic() + _FREE_S
    while not (slots := free_submeshes(virtual.num_hosts, virtual.num_devices_per_host, most, {})):
        if time.monotonic() > end:
            raise ProfilingError.no_free_submesh(virtual.num_hosts, virtual.num_devices_per_host, _FREE_S)
        time.sleep(_LOOK_AGAIN_S)
    return slots
