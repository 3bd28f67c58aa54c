"""The devices of Alpa's meshes, for planning: of physical meshes, and of submeshes for which nothing runs yet.

Takes alpa's logical mesh; gives the client or the measurer of devices like its own: those of this process, those of the
mesh's processes, or free devices of the cluster. Imports Ray only where it is used.
"""

import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import jax

from alpa_cfp.errors import NoDevicesError, ProfilingError
from alpa_cfp.planner.request import LocalDevices, Measured
from alpa_cfp.profiling import MeasureOptions
from alpa_cfp.profiling.meshes.slots import Slot
from alpa_cfp.spmd.compile.executable import Client
from alpa_on_jax.in_process.place import is_here

# Ray reports a moment late that devices are free again.
_FREE_S = 20.0
_CHECK_S = 0.2


@dataclass(frozen=True, slots=True)
class AlpaDevices:
    """The devices of a logical mesh; see `planner.request.Devices`.

    Attributes:
        logical_mesh: Alpa's `LogicalDeviceMesh`.
    """

    logical_mesh: Any

    @property
    def key(self) -> Hashable:
        """Alpa's physical or virtual mesh, and the numbers of the devices."""
        return self.logical_mesh.physical_mesh, self._virtual, self._numbers

    @property
    def _virtual(self) -> Any:
        """Alpa's `VirtualPhysicalMesh`, of a submesh of a pipeline."""
        return getattr(self.logical_mesh, "virtual_mesh", None)

    @property
    def _numbers(self) -> tuple[int, ...]:
        """For each device of the logical mesh, in its order, its position among the devices of all hosts."""
        return tuple(int(number) for number in self.logical_mesh.id_mesh.flatten())

    def measured(self, options: MeasureOptions) -> Measured:
        """See `planner.request.Devices`.

        Raises:
            NoDevicesError: the mesh has no devices here.
            ProfilingError: the cluster has no such submesh free.
        """
        physical, virtual = self.logical_mesh.physical_mesh, self._virtual
        is_submesh = physical is None and virtual is not None
        if virtual is not None and is_submesh:
            if is_here(virtual):
                return Client([jax.local_devices()[number] for number in self._numbers])
            physical = virtual.launched_physical_mesh
            if physical is None:
                return self._measured_on_free_slots(options)
        if is_submesh or getattr(physical, "workers", None):
            from alpa_cfp.alpa.ray_hosts import measurer_of

            return measurer_of(physical, self._numbers, options)
        devices = getattr(physical, "devices", None)
        if not devices or any(device is None for device in devices):
            raise NoDevicesError.not_here(tuple(int(size) for size in self.logical_mesh.shape))
        return Client([devices[number] for number in self._numbers])

    def _measured_on_free_slots(self, options: MeasureOptions) -> Measured:
        from alpa_cfp.alpa.ray_hosts import pool_on
        from alpa_cfp.alpa.ray_slots import device_kind_of

        slots = _free_slots(self._virtual, options.slots)
        return pool_on(slots, (device_kind_of(slots[0]),) * self._virtual.num_devices, self._numbers, options)

    def memory_bytes(self) -> int:
        """See `planner.request.Devices`; only for a submesh of a pipeline.

        Raises:
            ProfilingError: the cluster has no such submesh free.
        """
        virtual = self._virtual
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
        time.sleep(_CHECK_S)
    return slots
