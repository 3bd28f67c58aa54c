"""The session in which candidate stages of a pipeline are planned.

A `Session` with a `StageCostModel` for each mesh. Invariant: a plan depends on the stages that were planned before only
if costs are composed, since measurements of one stage count for later ones.
"""

from dataclasses import dataclass, field
from typing import Any

from alpa_cfp.planner.request import Devices, TargetDevices
from alpa_cfp.planner.session import Session
from alpa_cfp.select.calibration import calibration_programs
from alpa_cfp.spmd.module.stage_programs import NO_LIMIT_BYTES
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.stages.stage_costs import StageCostModel


@dataclass(eq=False)
class StageSession(Session):
    """A session for candidate stages; see `Session`."""

    _cost_models: dict[Any, StageCostModel] = field(default_factory=dict)
    _memory_bytes_of: dict[Any, int] = field(default_factory=dict)

    def cost_model(self, devices: Devices, mesh: LogicalMesh) -> StageCostModel:
        """The cost model of a mesh; see `source`."""
        key = (devices.key, mesh)
        if key not in self._cost_models:
            memory_bytes = self._memory_bytes(devices)
            self.expect(devices, mesh, calibration_programs(mesh))
            target = devices.target if isinstance(devices, TargetDevices) else None
            self._cost_models[key] = StageCostModel(mesh, memory_bytes, self.source(devices, mesh), target)
        return self._cost_models[key]

    def _memory_bytes(self, devices: Devices) -> int:
        """The memory that a device may hold. It is read before a profiler starts, which then holds the devices."""
        options = self.options
        if options.memory_budget_bytes is not None:
            return options.memory_budget_bytes
        if isinstance(devices, TargetDevices):
            return devices.memory_bytes()
        if options.costs != "measure":
            return NO_LIMIT_BYTES
        if devices.key not in self._memory_bytes_of:
            self._memory_bytes_of[devices.key] = devices.memory_bytes()
        return self._memory_bytes_of[devices.key]
