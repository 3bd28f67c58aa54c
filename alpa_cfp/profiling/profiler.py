"""Measure partitioned programs on the devices that they are meant for.

Takes modules with their partitioned programs; gives a profile for each, from the database where it has one. Programs
are measured in groups (`groups`), in a process of their own where that can be (`isolated`), or on several hosts
(`hosts`), there on several meshes at once if there are (`pool`). Every profile goes into the database as soon as its
group has run, so a run that is broken off loses no finished one, and one that is started again measures only what is
missing: of a group that was not finished, all of it. A program that cannot be compiled or run costs that program only:
its profile says why, and it is not tried again. Where that was not its own doing, it is left out until this profiler is
closed, and not recorded.
"""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from types import TracebackType
from typing import Protocol

from tqdm import tqdm

from alpa_cfp.database import Profile, ProfileDatabase, ProfileKey
from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling.keys import DeviceDescription, key_of
from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.process.events import Finished
from alpa_cfp.profiling.process.in_process_runner import InProcessRunner
from alpa_cfp.profiling.process.setups import setup_of
from alpa_cfp.profiling.process.subprocess_runner import SubprocessRunner
from alpa_cfp.profiling.queue import Group, ProfilingQueue
from alpa_cfp.spmd.compile.executable import Client
from alpa_cfp.spmd.errors import SpmdError
from alpa_cfp.spmd.module.hlo_module import HloModule

logger = logging.getLogger(__name__)

_DEFAULTS = MeasureOptions()


def measure(
    modules: Sequence[HloModule],
    client: Client,
    database: ProfileDatabase,
    options: MeasureOptions = _DEFAULTS,
) -> list[Profile]:
    """The profile of each of `modules`; equal programs are measured once. See `Profiler` for more than one call.

    Args:
        modules: Modules with their partitioned programs, for the mesh of `client`.
        client: The backend of the mesh.
        database: Where profiles come from and go to.
        options: See `MeasureOptions`.

    Raises:
        ProfilingError: as `Profiler.measure`.
    """
    with Profiler(client, database, options) as profiler:
        return profiler.measure(modules)


class Measurer(Protocol):
    """Measures groups of programs."""

    @property
    def pid(self) -> int | None:
        """The id of the process of this machine that measures, where it is another one."""
        ...

    def start(self) -> None:
        """Be ready to measure.

        Raises:
            ProfilingError: that is not possible.
        """
        ...

    def measure(self, work: ProfilingQueue) -> Generator[tuple[Group, Finished]]:
        """Measure all groups of the work; each program that is finished, as it comes, with its group.

        Raises:
            ProfilingError: nothing can be measured, or no longer.
        """
        ...

    def close(self) -> None:
        """End what was started."""
        ...


class SequentialBackend:
    """Measures one group after the other, in a process of its own or in this one."""

    def __init__(self, process: SubprocessRunner | InProcessRunner) -> None:
        self._process = process

    @property
    def pid(self) -> int | None:
        """See `Measurer`."""
        return self._process.pid

    def start(self) -> None:
        """See `Measurer`."""
        self._process.start()

    def measure(self, work: ProfilingQueue) -> Generator[tuple[Group, Finished]]:
        """See `Measurer`."""
        while (group := work.take()) is not None:
            # Closed at once if this is interrupted: its process must be gone before the next one starts.
            with contextlib.closing(self._process.measure(group.modules, group.drawn, group.samples)) as events:
                for finished in events:
                    yield group, finished
            work.end(group)

    def close(self) -> None:
        """See `Measurer`."""
        self._process.close()


class Profiler:
    """Measures programs on a mesh; a context manager that ends the processes which it may have started.

    They are started when there is something to measure, and then kept for the next calls.

    Args:
        mesh: The client of a mesh of this process, or what measures on a mesh of other processes, with its devices.
        database: Where profiles come from and go to.
        options: See `MeasureOptions`.

    Attributes:
        devices: What the profiles' keys say of the mesh's devices.
    """

    def __init__(
        self,
        mesh: Client | tuple[Measurer, DeviceDescription],
        database: ProfileDatabase,
        options: MeasureOptions = _DEFAULTS,
    ) -> None:
        self._client = mesh if isinstance(mesh, Client) else None
        self._database = database
        self._options = options
        self._drawn = random.Random(options.seed)
        self._starting: threading.Thread | None = None
        # Of programs that failed, though not by themselves.
        self._for_now: dict[ProfileKey, Profile] = {}
        if isinstance(mesh, Client):
            self.devices = DeviceDescription.of(mesh.devices())
            wanted = mesh.platform == "cpu" if options.isolated is None else options.isolated
            process = SubprocessRunner(partial(setup_of, mesh), options) if wanted else InProcessRunner(mesh)
            self._measurer: Measurer = SequentialBackend(process)
        else:
            self._measurer, self.devices = mesh

    @property
    def worker_pid(self) -> int | None:
        """The id of the process of this machine that measures, while there is one."""
        return self._measurer.pid

    def expect(self, make: Callable[[], Sequence[HloModule]]) -> None:
        """Start what measures on other hosts, if the profile of a module is missing, and do not wait for it.

        What goes wrong is said when something is measured.

        Args:
            make: Gives the modules; called only if there are other hosts.
        """
        if self._client is not None or self._starting is not None:
            return
        if any(self._database.get(key_of(module, self.devices)[0]) is None for module in make()):
            self._starting = threading.Thread(target=_start_quietly, args=(self._measurer,), daemon=True)
            self._starting.start()

    def measure(self, modules: Sequence[HloModule], samples: int | None = None) -> list[Profile]:
        """The profile of each of `modules`; equal programs are measured once.

        Args:
            modules: Modules with their partitioned programs.
            samples: How many samples each profile has at least, if they are to be told apart by small differences:
                then they are measured on one mesh, interleaved. None for as many as the options say, on all meshes.

        Raises:
            ProfilingError: the process that is to measure cannot be started, though the options demand it, or though
                it could be before.
        """
        keys = [key_of(module, self.devices) for module in modules]
        together = samples is not None
        samples = self._options.samples if samples is None else samples
        missing: dict[ProfileKey, tuple[str, HloModule]] = {}
        lacking = 0
        for (key, text), module in zip(keys, modules, strict=True):
            lacks = 0 if key in self._for_now else _lacking(self._database.get(key), samples)
            if lacks > 0:
                missing.setdefault(key, (text, module))
                lacking = max(lacking, lacks)
        count = len({key for key, _ in keys})
        started = time.perf_counter()
        if missing:
            self._measure_missing(missing, lacking, together=together)
        seconds = time.perf_counter() - started
        logger.info("profiles of %d programs: %d measured in %.2f s", count, len(missing), seconds)
        profiles = [self._database.get(key) or self._for_now.get(key) for key, _ in keys]
        return [profile for profile in profiles if profile is not None]

    def close(self) -> None:
        """End the processes that measure, and let go of what is loaded."""
        self._wait_until_begun()
        self._measurer.close()

    def __enter__(self) -> "Profiler":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _measure_missing(
        self, missing: dict[ProfileKey, tuple[str, HloModule]], samples: int, *, together: bool
    ) -> None:
        self._start()
        modules = {key: module for key, (_, module) in missing.items()}
        work = ProfilingQueue(modules, samples, self._options.group, self._drawn, together=together)
        with (
            tqdm(total=len(missing), desc="profiling", disable=not self._options.progress, leave=False) as bar,
            contextlib.closing(self._measurer.measure(work)) as events,
        ):
            for group, finished in events:
                key = work.finish(group, finished)
                if key is not None:
                    self._record(key, missing[key][0], finished)
                    bar.update()

    def _start(self) -> None:
        """Start what measures; where only the devices speak for a process of its own, this one does it instead."""
        self._wait_until_begun()
        try:
            self._measurer.start()
        except ProfilingError as error:
            if self._client is None or self._options.isolated:
                raise
            logger.warning("%s. Profiling goes on in this process, which a program that crashes would end", error)
            self._measurer = SequentialBackend(InProcessRunner(self._client))

    def _wait_until_begun(self) -> None:
        if self._starting is not None:
            self._starting.join()

    def _record(self, key: ProfileKey, text: str, finished: Finished) -> None:
        profile = finished.profile
        if profile.status == "failed":
            first_line = profile.failure_message.partition("\n")[0]
            logger.warning("a program cannot be profiled (%s): %s", profile.failure, first_line)
        if finished.is_lasting:
            self._database.put(key, profile, program_text=text)
        else:
            self._for_now[key] = profile


def _start_quietly(measurer: Measurer) -> None:
    # It is tried again before it is used, and fails again then.
    with contextlib.suppress(ProfilingError, SpmdError):
        measurer.start()


def _lacking(profile: Profile | None, samples: int) -> int:
    """How many samples are missing; what has failed is not tried again."""
    if profile is None:
        return samples
    return 0 if profile.status == "failed" else samples - len(profile.samples_s)
