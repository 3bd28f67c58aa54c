"""`PlanRequest`: the mesh, its devices, the micro-batches and the memory budget of a plan."""

import logging
import os
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from alpa_cfp.errors import NoDevicesError
from alpa_cfp.profiling import DeviceDescription, MeasureOptions, Measurer
from alpa_cfp.profiling.targets.runner import TargetRunner, description_of
from alpa_cfp.spmd.compile.executable import Client
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.targets.target import Target

logger = logging.getLogger(__name__)

Measured = Client | tuple[Measurer, DeviceDescription]


class Devices(Protocol):
    """The devices of a mesh."""

    @property
    def key(self) -> Hashable:
        """Equal for the same devices in the same order."""
        ...

    def measured(self, options: MeasureOptions) -> Measured:
        """Returns what a profiler measures on.

        Raises:
            NoDevicesError: there are no such devices here.
        """
        ...

    def memory_bytes(self) -> int:
        """Returns the memory that one of them may hold."""
        ...


@dataclass(frozen=True, slots=True)
class LocalDevices:
    """Devices of this process.

    Attributes:
        devices: The devices in the order of the mesh; None for each that is not of this process.
        shape: The shape of the mesh.
    """

    devices: tuple[Any, ...]
    shape: tuple[int, ...]

    @property
    def key(self) -> Hashable:
        return self.devices

    def measured(self, options: MeasureOptions) -> Client:
        """See `Devices`."""
        del options
        if not self.devices or any(device is None for device in self.devices):
            raise NoDevicesError.not_here(self.shape)
        return Client(list(self.devices))

    def memory_bytes(self) -> int:
        """Returns a device's own memory, or its part of the machine's."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // len(self.devices)
        device = self.devices[0]
        limit = (device.memory_stats() or {}).get("bytes_limit")
        if limit is None and device.platform != "cpu":  # CPU devices do share the machine's memory
            logger.warning(
                "the memory of %s is unknown: a stage's budget is a part of the machine's, %d bytes. "
                "CFPOption(memory_budget_bytes=...) sets another one",
                device.device_kind,
                memory,
            )
        return memory if limit is None else limit


@dataclass(frozen=True, slots=True)
class TargetDevices:
    """Devices that are not here.

    Attributes:
        target: The target.
    """

    target: Target

    @property
    def key(self) -> Hashable:
        return self.target

    def measured(self, options: MeasureOptions) -> tuple[Measurer, DeviceDescription]:
        """See `Devices`; programs are compiled, and their seconds modelled."""
        return TargetRunner(self.target, options), description_of(self.target)

    def memory_bytes(self) -> int:
        """Returns the memory of its chip."""
        return self.target.chip.memory_bytes


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The request for a plan.

    Attributes:
        mesh: The logical mesh.
        devices: Its devices.
        num_micro_batches: The number of micro-batches of a step; 1 without gradient accumulation.
        memory_budget_bytes: The memory that one device has for the program; None without limit.
    """

    mesh: LogicalMesh
    devices: Devices
    num_micro_batches: int = 1
    memory_budget_bytes: int | None = None
