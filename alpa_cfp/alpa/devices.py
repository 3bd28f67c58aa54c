"""The devices of Alpa's meshes, as plans ask for them: physical meshes, and those that are only planned for."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from alpa_cfp.alpa.submeshes import measured_submesh, memory_of_submesh
from alpa_cfp.errors import NoDevicesError
from alpa_cfp.planner.request import Measured
from alpa_cfp.profiling import MeasureOptions
from alpa_cfp.spmd.compile.executable import Client


@dataclass(frozen=True, slots=True)
class AlpaDevices:
    """The devices of a logical mesh.

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
        return getattr(self.logical_mesh, "virtual_mesh", None)

    @property
    def _numbers(self) -> tuple[int, ...]:
        return tuple(int(number) for number in self.logical_mesh.id_mesh.flatten())

    def measured(self, options: MeasureOptions) -> Measured:
        """See `Devices`."""
        physical = self.logical_mesh.physical_mesh
        if getattr(physical, "workers", None):
            from alpa_cfp.alpa.ray_hosts import measurer_of  # not at the top: it needs Ray

            return measurer_of(physical, self._numbers, options)
        if physical is None and self._virtual is not None:
            return measured_submesh(self._virtual, self._numbers, options)
        devices = getattr(physical, "devices", None)
        if not devices or any(device is None for device in devices):
            raise NoDevicesError(tuple(int(size) for size in self.logical_mesh.shape))
        return Client([devices[number] for number in self._numbers])

    def memory_bytes(self) -> int:
        """See `Devices`; of a mesh that is only planned for."""
        return memory_of_submesh(self._virtual)
