"""What candidate stages of a pipeline are planned with.

A `Session` that also composes the costs of stages. Invariant: a plan depends on the stages before it only where costs
are composed: what a stage has taught counts for later ones.
"""

from dataclasses import dataclass, field
from typing import Any

from alpa_cfp.planner.request import Devices
from alpa_cfp.planner.session import Session
from alpa_cfp.spmd.module.stage_programs import NO_LIMIT_BYTES
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.stages.stage_costs import StageCostModel


@dataclass(eq=False)
class StageSession(Session):
    """A session for candidate stages; see `Session`."""

    _composers: dict[Any, StageCostModel] = field(default_factory=dict)
    _memories: dict[Any, int] = field(default_factory=dict)

    def composer(self, devices: Devices, mesh: LogicalMesh) -> StageCostModel:
        """What composes the costs of stages on a mesh; see `source`."""
        key = (devices.key, mesh)
        if key not in self._composers:
            self._composers[key] = StageCostModel(mesh, self._memory(devices), self.source(devices, mesh))
        return self._composers[key]

    def _memory(self, devices: Devices) -> int:
        """What a device may hold: asked for before anything measures there, and so holds the devices."""
        options = self.options
        if options.memory_budget_bytes is not None:
            return options.memory_budget_bytes
        if options.costs != "measure":
            return NO_LIMIT_BYTES
        if devices.key not in self._memories:
            self._memories[devices.key] = devices.memory_bytes()
        return self._memories[devices.key]
