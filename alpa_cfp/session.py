"""What plans are made with, and what several plans share: profiles, what measures, candidates.

Takes an option; opens its database, and starts what measures on a submesh when something has to be measured there. A
context manager: after it the database is closed, and no process is left. Invariant: a plan does not depend on which
others were made in the session, unless costs of stages are composed: what a stage has taught counts for later ones.
"""

import contextlib
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from alpa_cfp.calibration import calibration_programs
from alpa_cfp.candidates import Candidate
from alpa_cfp.composing import Composed, Composer
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.errors import NoDevicesError
from alpa_cfp.profiling import MeasureOptions, Profiler, recorded_devices
from alpa_cfp.profiling.meshes.submeshes import measured_submesh, memory_of_submesh
from alpa_cfp.program import Programs
from alpa_cfp.sources import Source, recorded
from alpa_on_jax.xla_extension.executable import Client
from alpa_on_jax.xla_extension.planner import NO_LIMIT_BYTES
from alpa_on_jax.xla_extension.sharding import LogicalMesh

if TYPE_CHECKING:
    from alpa_cfp.option import CFPOption, StageCosts


class Session:
    """What plans are made with.

    Args:
        option: How to plan.
        stages: Where costs of candidate stages come from (`CFPOption.stage_costs`), if the plans are for those. They
            need be only as good as that; alpa times the stages itself where costs are not composed.
        programs: Those that were planned before; new ones are added.

    Attributes:
        stages, programs: The same.
        database: The profile database.
        candidates: Those of the kinds of blocks that were seen, by what they depend on (see `find_units`).
        composed: Of the stage that was planned last, where stages are composed, by the shapes of its meshes.
    """

    def __init__(
        self, option: "CFPOption", stages: "StageCosts | None" = None, programs: Programs | None = None
    ) -> None:
        self._option, self.stages, self.programs = option, stages, programs or Programs()
        self._open = contextlib.ExitStack()
        self.database = self._open.enter_context(ProfileDatabase.open(option.database))
        self.candidates: dict[Any, tuple[Candidate, ...]] = {}
        self.composed: dict[tuple[int, ...], Composed] = {}
        self._profilers: dict[Any, Profiler] = {}
        self._composers: dict[Any, Composer] = {}
        self._memories: dict[Any, int] = {}

    def source(self, logical_mesh: Any, mesh: LogicalMesh) -> Source | None:
        """What gives the profiles of programs for a mesh; None where costs are estimates.

        Args:
            logical_mesh: Alpa's `LogicalDeviceMesh`.
            mesh: How its devices are laid out.

        Raises:
            NoDevicesError: costs are to be measured, and the mesh has no devices.
            ReplayError: the database has nothing of such a mesh.
        """
        option = self._option
        if option.costs == "estimate":
            return None
        if option.costs == "replay":
            devices = recorded_devices(self.database, mesh.shape, device_kind=option.device_kind)
            return Source(devices, recorded(devices, self.database))
        profiler = self._profiler(logical_mesh, mesh)
        # They are what is measured first, after the program has been looked at.
        profiler.expect(partial(calibration_programs, mesh))
        return Source(profiler.devices, profiler.measure)

    def composer(self, logical_mesh: Any, mesh: LogicalMesh) -> Composer:
        """What composes the costs of stages on a mesh; see `source`."""
        key = (*self._mesh_key(logical_mesh), mesh)
        if key not in self._composers:
            self._composers[key] = Composer(mesh, self._memory(logical_mesh), self.source(logical_mesh, mesh))
        return self._composers[key]

    def _memory(self, logical_mesh: Any) -> int:
        """What a device may hold: asked for before anything measures there, and so holds the devices."""
        key, option = self._mesh_key(logical_mesh), self._option
        if option.memory_budget_bytes is not None:
            return option.memory_budget_bytes
        if option.costs != "measure":
            return NO_LIMIT_BYTES
        if key not in self._memories:
            self._memories[key] = memory_of_submesh(logical_mesh.virtual_mesh)
        return self._memories[key]

    def _profiler(self, logical_mesh: Any, mesh: LogicalMesh) -> Profiler:
        """What measures on the devices of a mesh, in their order there; one for all ways to lay them out."""
        key = self._mesh_key(logical_mesh)
        if key not in self._profilers:
            option, physical, virtual, numbers = self._option, *key
            options = MeasureOptions(option.samples, seed=option.seed, progress=option.progress)
            if getattr(physical, "workers", None):
                from alpa_cfp.profiling.meshes.ray_hosts import measurer_of

                measured = measurer_of(physical, numbers, options)
            elif physical is None and virtual is not None:
                measured = measured_submesh(virtual, numbers, options)
            else:
                devices = getattr(physical, "devices", None)
                if not devices or any(device is None for device in devices):
                    raise NoDevicesError(mesh.shape)
                measured = Client([devices[number] for number in numbers])
            self._profilers[key] = self._open.enter_context(Profiler(measured, self.database, options))
        return self._profilers[key]

    @staticmethod
    def _mesh_key(logical_mesh: Any) -> tuple[Any, Any, tuple[int, ...]]:
        """Alpa's physical or virtual mesh, and the numbers of the devices."""
        numbers = tuple(int(number) for number in logical_mesh.id_mesh.flatten())
        return logical_mesh.physical_mesh, getattr(logical_mesh, "virtual_mesh", None), numbers

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.close()
