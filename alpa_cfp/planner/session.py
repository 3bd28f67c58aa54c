"""A session: the resources that plans share, which are profiles, profilers and candidates.

Takes options; opens the profile database, and starts a profiler on a submesh when something has to be measured there. A
context manager: at its exit the database is closed, and no process is left. Invariant: a plan does not depend on the
other plans of the session.
"""

import contextlib
from functools import partial
from types import TracebackType
from typing import Any, Self

from alpa_cfp.candidates.block_candidates import Candidate
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.extraction.analysed_program import AnalysedPrograms
from alpa_cfp.planner.options import PlanOptions
from alpa_cfp.planner.request import Devices
from alpa_cfp.profiling import MeasureOptions, Profiler, recorded_devices
from alpa_cfp.select.calibration import calibration_programs
from alpa_cfp.select.profile_source import Source, recorded
from alpa_cfp.spmd.shardings.sharding import LogicalMesh


class Session:
    """The resources that plans share.

    Args:
        options: How to plan.
        programs: The programs that were analysed before; new ones are added.

    Attributes:
        programs: The same.
        database: The profile database.
        candidates: The cache of candidates (see `find_block_candidates`).
    """

    def __init__(self, options: PlanOptions, programs: AnalysedPrograms | None = None) -> None:
        self.options, self.programs = options, programs or AnalysedPrograms()
        self._open = contextlib.ExitStack()
        self.database = self._open.enter_context(ProfileDatabase.open(options.database))
        self.candidates: dict[Any, tuple[Candidate, ...]] = {}
        self._profilers: dict[Any, Profiler] = {}

    def source(self, devices: Devices, mesh: LogicalMesh) -> Source | None:
        """Returns the source of profiles for a mesh; None if costs are estimates.

        Args:
            devices: The devices of the mesh.
            mesh: The logical mesh.

        Raises:
            NoDevicesError: costs are to be measured, and the mesh has no devices.
            ReplayError: the database has no profiles of such a mesh.
        """
        options = self.options
        if options.costs == "estimate":
            return None
        if options.costs == "replay":
            recorded_on = recorded_devices(self.database, mesh.shape, device_kind=options.device_kind)
            return Source(recorded_on, recorded(recorded_on, self.database))
        profiler = self._profiler(devices)
        # The calibration programs are measured first, after the analysis of the program.
        profiler.expect(partial(calibration_programs, mesh))
        return Source(profiler.devices, profiler.measure)

    def _profiler(self, devices: Devices) -> Profiler:
        """The profiler of some devices in their order, one for all shapes of their mesh."""
        if devices.key not in self._profilers:
            options = MeasureOptions(self.options.samples, seed=self.options.seed, progress=self.options.progress)
            self._profilers[devices.key] = self._open.enter_context(
                Profiler(devices.measured(options), self.database, options)
            )
        return self._profilers[devices.key]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.close()
