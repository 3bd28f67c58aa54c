"""A planning session: the profile database, profilers and candidates that several plans share.

`Session.open` opens the database; a profiler of a submesh starts when something has to be measured there. When the
context ends, all profilers and the database are closed, and no process is left. Invariant: a plan does not depend on
which others were made in the session.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from alpa_cfp.candidates.block_candidates import CandidateCache
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.errors import NoDevicesError
from alpa_cfp.extraction.analysed_program import AnalysedPrograms
from alpa_cfp.planner.options import PlanOptions
from alpa_cfp.planner.request import Devices, TargetDevices
from alpa_cfp.profiling import MeasureOptions, Profiler, TimeBudget, recorded_devices
from alpa_cfp.profiling.targets.runner import device_kind_of
from alpa_cfp.select.communication import reference_programs
from alpa_cfp.select.profile_source import ProfileSource, TrackedSource, modelled, recorded
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh


@dataclass(eq=False)
class Session:
    """Plans share these while a session is open; made by `open`.

    Attributes:
        options: How to plan.
        programs: The programs that were analysed; new ones are added.
        database: The profile database.
        profilers: Closes the profilers when the session ends.
        candidates: Those of the kinds of blocks that were seen, by what they depend on (see `find_block_candidates`).
    """

    options: PlanOptions
    programs: AnalysedPrograms
    database: ProfileDatabase
    profilers: ExitStack
    candidates: CandidateCache = field(default_factory=dict)
    _profiler_of: dict[Any, Profiler] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def open(cls, options: PlanOptions, programs: AnalysedPrograms | None = None) -> Iterator[Self]:
        """Open a session with the database that the options name (see `ProfileDatabase.open`).

        Args:
            options: How to plan.
            programs: Programs that were analysed before; None for none.
        """
        with ProfileDatabase.open(options.database) as database, ExitStack() as profilers:
            yield cls(options, programs or AnalysedPrograms(), database, profilers)

    def source(self, devices: Devices, mesh: LogicalMesh, budget: TimeBudget | None = None) -> TrackedSource | None:
        """The source of profiles of programs for a mesh; None where costs are estimates.

        Args:
            devices: The devices of the mesh.
            mesh: The logical mesh.
            budget: The time after which nothing more is measured; None without limit.

        Raises:
            NoDevicesError: costs are to be measured, and the mesh has no devices; or programs are to be compiled for a
                target, and the mesh is none of a target.
            ReplayError: the database has no profiles of such a mesh.
        """
        options = self.options
        if options.costs == "measure" and isinstance(devices, TargetDevices):
            raise NoDevicesError.of_target(devices.target.name)
        if options.costs == "compile" and not isinstance(devices, TargetDevices):
            raise NoDevicesError.no_target(mesh.shape)
        if options.costs == "estimate":
            return None
        if options.costs == "replay":
            kind = device_kind_of(devices.target) if isinstance(devices, TargetDevices) else None
            recorded_on = recorded_devices(self.database, mesh.shape, device_kind=options.device_kind or kind)
            profiles = recorded(recorded_on, self.database)
            return TrackedSource(recorded_on, profiles, options.samples, self.database.timeline)
        profiler = self._profiler(devices, mesh)
        profiles: ProfileSource = partial(profiler.measure_within, budget or TimeBudget())
        if options.costs == "compile":
            profiles = modelled(profiles)
        return TrackedSource(profiler.devices, profiles, options.samples, self.database.timeline)

    def expect(self, devices: Devices, mesh: LogicalMesh, programs: Sequence[HloModule]) -> None:
        """Compile what is measured next, if costs are measured, while planning goes on.

        Args:
            devices: The devices of the mesh.
            mesh: The logical mesh.
            programs: What is measured next.
        """
        if self.options.costs == "measure":
            self._profiler(devices, mesh).expect(programs)

    def _profiler(self, devices: Devices, mesh: LogicalMesh) -> Profiler:
        """The profiler of devices in their order; one for all logical meshes over them."""
        if devices.key not in self._profiler_of:
            is_modelled = self.options.costs == "compile"
            samples = 1 if is_modelled else self.options.samples
            options = MeasureOptions(samples, seed=self.options.seed, progress=self.options.progress)
            measured, references = devices.measured(options), () if is_modelled else reference_programs(mesh)
            profiler = Profiler(measured, self.database, options, references)
            self._profiler_of[devices.key] = self.profilers.enter_context(profiler)
        return self._profiler_of[devices.key]
