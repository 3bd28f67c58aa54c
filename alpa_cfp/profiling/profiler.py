"""Measure partitioned programs on the devices that they are meant for.

Takes modules with their partitioned programs; gives a profile for each, from the database where it has one. Programs
are measured in groups (`queue`), on this machine (`runners`) or on several hosts (`meshes.hosts`), there on several
meshes at once if there are (`meshes.pool`). Every profile goes into the database as soon as its group has run, so an
interrupted run loses no finished one, and a later run measures only what is missing: of a group that was not finished,
all of it. A program that cannot be compiled or run costs that program only: its profile has the reason, and it is not
tried again. A failure that the program did not cause is not recorded; it is tried again by the next profiler.
"""

import contextlib
import logging
import math
import random
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Protocol, Self

from tqdm import tqdm

from alpa_cfp.database import Profile, ProfileDatabase, ProfileKey
from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling.keys import DeviceDescription, key_of
from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.preparing import Preparation
from alpa_cfp.profiling.process.protocol import Finished
from alpa_cfp.profiling.queue import Group, ProfilingQueue
from alpa_cfp.profiling.runners import InProcessRunner, SubprocessRunner
from alpa_cfp.profiling.time_budget import TimeBudget
from alpa_cfp.spmd.compile.executable import Client
from alpa_cfp.spmd.module.hlo_module import HloModule

logger = logging.getLogger(__name__)


class Measurer(Protocol):
    """Measures groups of programs."""

    def start(self) -> None:
        """Be ready to measure.

        Raises:
            ProfilingError: that is not possible.
        """
        ...

    def prepare(self, modules: Sequence[HloModule]) -> None:
        """As `start`; may compile programs that will be measured, as long as nothing is measured.

        Raises:
            ProfilingError: as `start`.
        """
        ...

    def measure(self, work: ProfilingQueue) -> Generator[tuple[Group, Finished]]:
        """Measure all groups of the work; gives each finished program with its group as soon as it is finished.

        Raises:
            ProfilingError: nothing can be measured, or no longer.
        """
        ...

    def close(self) -> None:
        """End all processes that were started."""
        ...


class Profiler:
    """Measures programs on a mesh; a context manager that ends the processes which it may have started.

    They are started when there is something to measure, and then kept for the next calls.

    Args:
        mesh: The client of a mesh of this process, or a measurer of another mesh, with its devices.
        database: Where profiles come from and go to.
        options: See `MeasureOptions`.
        references: Programs that run with each group. The speed of a machine drifts, by 10% within a minute where
            others use it, too; times are divided by what these take, relative to their first profiles in the database.

    Attributes:
        devices: The mesh's devices, as the profiles' keys describe them.
    """

    def __init__(
        self,
        mesh: Client | tuple[Measurer, DeviceDescription],
        database: ProfileDatabase,
        options: MeasureOptions,
        references: Sequence[HloModule] = (),
    ) -> None:
        self._client = mesh if isinstance(mesh, Client) else None
        self._database = database
        self._options = options
        self._references = references
        self._rng = random.Random(options.seed)
        # Programs that were expected before.
        self._expected = set[ProfileKey]()
        self._preparation = Preparation(lambda modules: self._measurer.prepare(modules))
        # Failures that the programs did not cause.
        self._unrecorded: dict[ProfileKey, Profile] = {}
        self._measurer: Measurer
        if isinstance(mesh, Client):
            self.devices = DeviceDescription.of(mesh.devices())
            isolated = mesh.platform == "cpu" if options.isolated is None else options.isolated
            self._measurer = SubprocessRunner(mesh, options) if isolated else InProcessRunner(mesh)
        else:
            self._measurer, self.devices = mesh

    def expect(self, modules: Sequence[HloModule]) -> None:
        """Start measuring processes, if the profile of a module is missing, and compile there, while planning goes on.

        Errors are raised when something is measured.

        Args:
            modules: Modules that will be measured next.
        """
        new: list[HloModule] = []
        is_first = not self._expected
        for module in modules:
            key, _ = key_of(module, self.devices)
            if key not in self._expected and self._database.get(key) is None:
                self._expected.add(key)
                new.append(module)
        self._preparation.add([*self._references, *new] if new and is_first else new)

    def measure(self, modules: Sequence[HloModule], samples: int | Sequence[int] | None = None) -> list[Profile]:
        """The profile of each of `modules`; equal programs are measured once.

        Args:
            modules: Modules with their partitioned programs.
            samples: The least number of samples of each profile, or of all, for programs that are compared by small
                differences: these are measured on one mesh, interleaved, each as often as the one that lacks most. None
                for as many as the options say, on all meshes.

        Raises:
            ProfilingError: the measuring process cannot be started, though the options demand it, or though it could be
                before.
        """
        return [profile for profile in self.measure_within(TimeBudget(), modules, samples) if profile is not None]

    def measure_within(
        self, budget: TimeBudget, modules: Sequence[HloModule], samples: int | Sequence[int] | None = None
    ) -> list[Profile | None]:
        """As `measure`; begins with no other group of programs once the time is over, and gives None for the rest."""
        keys = [key_of(module, self.devices) for module in modules]
        together = samples is not None
        samples = self._options.samples if samples is None else samples
        wanted = [samples] * len(modules) if isinstance(samples, int) else samples
        missing: dict[ProfileKey, tuple[str, HloModule]] = {}
        most_lacking = 0
        for (key, text), module, number in zip(keys, modules, wanted, strict=True):
            lacking = 0 if key in self._unrecorded else _lacking_samples(self._database.get(key), number)
            if lacking > 0:
                missing.setdefault(key, (text, module))
                most_lacking = max(most_lacking, lacking)
        count = len({key for key, _ in keys})
        started = time.perf_counter()
        if missing and not budget.is_over:
            self._measure_missing(missing, most_lacking, budget, together=together)
        seconds = time.perf_counter() - started
        logger.info("profiles of %d programs: %d measured in %.2f s", count, len(missing), seconds)
        return [self._database.get(key) or self._unrecorded.get(key) for key, _ in keys]

    def close(self) -> None:
        """End the measuring processes, and unload all programs."""
        self._preparation.settle()
        self._measurer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _measure_missing(
        self, missing: dict[ProfileKey, tuple[str, HloModule]], samples: int, budget: TimeBudget, *, together: bool
    ) -> None:
        self._start()
        modules = {key: module for key, (_, module) in missing.items()}
        texts = {key_of(module, self.devices): module for module in self._references}
        references = {key: module for (key, _), module in texts.items()}
        work = ProfilingQueue(
            modules, samples, self._options.group, self._rng, together=together, budget=budget, references=references
        )
        slowness: dict[Group, list[float]] = {}
        with (
            tqdm(total=len(missing), desc="profiling", disable=not self._options.progress, leave=False) as bar,
            contextlib.closing(self._measurer.measure(work)) as events,
        ):
            for group, finished in events:
                if finished.index < group.references:
                    key, text = list(texts)[finished.index]
                    slowness.setdefault(group, []).append(self._slowness(key, text, finished.profile))
                    continue
                finished = _at_usual_speed(finished, slowness.get(group, []))
                key = work.finish(group, finished)
                if key is not None:
                    self._record(key, missing[key][0], finished)
                    bar.update()

    def _slowness(self, key: ProfileKey, text: str, profile: Profile) -> float:
        """How many times as long a reference takes now as when it was first measured."""
        if not profile.samples_s:
            return 1.0
        usual = self._database.get(key)
        if usual is None or not usual.samples_s:
            self._database.put(key, profile, program_text=text)
            return 1.0
        return profile.lower_half_mean_s / usual.lower_half_mean_s

    def _start(self) -> None:
        """Start the measurer; if a worker process cannot be started, and need not be, measure in this process."""
        self._preparation.settle()
        try:
            self._measurer.start()
        except ProfilingError as error:
            if self._client is None or self._options.isolated:
                raise
            logger.warning("%s. Profiling goes on in this process, which a program that crashes would end", error)
            self._measurer = InProcessRunner(self._client)

    def _record(self, key: ProfileKey, text: str, finished: Finished) -> None:
        profile = finished.profile
        if profile.status == "failed":
            first_line = profile.failure_message.partition("\n")[0]
            logger.warning("a program cannot be profiled (%s): %s", profile.failure, first_line)
        if finished.is_permanent:
            self._database.put(key, profile, program_text=text, timeline=finished.timeline)
        else:
            self._unrecorded[key] = profile


def _at_usual_speed(finished: Finished, slowness: Sequence[float]) -> Finished:
    """A finished program with the times that it would have taken at the usual speed of the mesh."""
    if not slowness:
        return finished
    factor = math.prod(slowness) ** (1 / len(slowness))
    samples_s = tuple(each / factor for each in finished.profile.samples_s)
    return replace(finished, profile=replace(finished.profile, samples_s=samples_s))


def _lacking_samples(profile: Profile | None, samples: int) -> int:
    """The number of samples that are missing; none of a program that has failed."""
    if profile is None:
        return samples
    return 0 if profile.status == "failed" else samples - len(profile.samples_s)
