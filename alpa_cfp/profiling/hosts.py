"""Measure programs on a mesh of several hosts, which is made anew when one of them is lost.

Takes the hosts, each with a supervisor that can be called, and groups of modules; gives a profile for each, like the
process that measures on a mesh of this machine (`isolated`). All hosts get the same tasks and do the same runs in the
same order, so they meet in the programs' collectives. A run takes as long as on the host where it takes longest.

The mesh is the unit of failure. A host that dies or hangs, or on which a program fails while it runs, ends the mesh;
another one is made on the same nodes, and what is not finished is measured there. A program at which a mesh was lost
`ATTEMPTS` times has failed. Invariants: every wait ends if those of the hosts do; no call leaves a mesh behind that
cannot be used; a finished profile is given as soon as all hosts have it.
"""

import logging
import queue
import random
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from alpa_cfp.database import Profile
from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling.group import Finished
from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.protocol import Setup, Task, TaskDone
from alpa_on_jax.ray_mesh.jax_runtime import Service
from alpa_on_jax.xla_extension.hlo_module import HloModule

logger = logging.getLogger(__name__)

# How often a program is begun at which a mesh was lost, and how often a mesh is made that does nothing.
ATTEMPTS = 3
# Of what a process wrote before it ended.
_MOST_LINES = 2
# How long the other hosts have to say at which program they were when one was lost.
_GRACE_S = 2.0


class HostLostError(Exception):
    """A host's supervisor is gone, or does not answer."""


class Host(Protocol):
    """A host, by its supervisor. Each call is made in a thread of its own, and ends, by an error if need be."""

    @property
    def name(self) -> str:
        """As people know it."""
        ...

    def start(self, setup: Setup) -> tuple[str, ...]:
        """Make a supervisor and start it; see `Supervisor.start`.

        Raises:
            HostLostError, ProfilingError: that is not possible.
        """
        ...

    def measure(self, task: Task) -> Iterator[Finished | TaskDone]:
        """See `Supervisor.measure`.

        Raises:
            HostLostError, ProfilingError: it is lost.
        """
        ...

    def end(self) -> None:
        """End the supervisor, whatever it does, and its process. Raises nothing."""
        ...


@dataclass(slots=True)
class _Progress:
    """What is known of the programs of a task.

    Attributes:
        hosts: How many there are.
        profiles: What each has made of a program, by the program's number.
        suspects: The programs at which a host's process ended, each with the failed profile that tells most.
    """

    hosts: int
    profiles: dict[int, list[Profile]] = field(default_factory=dict)
    suspects: dict[int, Profile] = field(default_factory=dict)

    def add(self, finished: Finished) -> Finished | None:
        """The profile of a program, once every host has made its own of it."""
        if ended(finished.profile):
            # That memory was short is known only where it was.
            if finished.index not in self.suspects or finished.profile.failure == "out_of_memory":
                self.suspects[finished.index] = finished.profile
            return None
        profiles = self.profiles.setdefault(finished.index, [])
        profiles.append(finished.profile)
        return Finished(finished.index, of_all_hosts(profiles)) if len(profiles) == self.hosts else None


class HostsWorker:
    """Measures groups of programs on a mesh of several hosts; the mesh is there from the first group until `close`.

    Args:
        hosts: The hosts, in the order of the mesh.
        positions: For each device of the logical mesh, in its order, its place among the devices of all hosts.
        new_mesh: Starts the service of a new mesh, and gives each host's setup for it but for the devices.
        options: How to measure.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        positions: Sequence[int],
        new_mesh: Callable[[], tuple[Service, Sequence[Setup]]],
        options: MeasureOptions,
    ) -> None:
        self._hosts, self._positions, self._new_mesh = tuple(hosts), tuple(positions), new_mesh
        self._options = options
        self._service: Service | None = None
        self._lost_at: Counter[bytes] = Counter()
        self._lost_in_a_row = 0

    @property
    def pid(self) -> None:
        """None: there is a process on each host."""
        return None

    def start(self) -> None:
        """Make the mesh, if there is none.

        Raises:
            ProfilingError: it cannot be made; the message names the hosts for which it cannot.
        """
        reasons: list[str] = []
        for _ in range(ATTEMPTS):
            if self._service is not None:
                return
            reasons = self._make()
            if reasons:
                logger.warning("the mesh to measure on cannot be made: %s", "; ".join(reasons))
        if self._service is None:
            raise ProfilingError.no_mesh(ATTEMPTS, reasons)

    def measure(
        self, modules: Sequence[HloModule], drawn: random.Random, samples: int | None = None
    ) -> Generator[Finished]:
        """Measure a group, each program as often as `samples` or else the options say.

        What is not finished at the end, because the mesh was lost before, can be given again.

        Raises:
            ProfilingError: no mesh can be made, or it is lost again and again and nobody knows at which program.
        """
        self.start()
        serialized = tuple(module.as_serialized_hlo_module_proto() for module in modules)
        task = Task(serialized, samples or self._options.samples, drawn)
        progress = _Progress(len(self._hosts))
        reasons: list[str] = []
        done = False
        try:
            for number, event in _together([partial(_measured, host, task) for host in self._hosts]):
                if isinstance(event, Finished):
                    finished = progress.add(event)
                    if finished is not None:
                        self._lost_in_a_row = 0
                        yield finished
                elif isinstance(event, Exception):
                    reasons.append(self._reason(number, event))
            done = not reasons
        finally:
            # Also where the caller has enough: the hosts are in the middle of something.
            if not done:
                self.close()
        if not done:
            yield from self._failed_for_good(serialized, progress.suspects, reasons)

    def close(self) -> None:
        """End the mesh, and all processes of its hosts."""
        service, self._service = self._service, None
        for _ in _together([partial(_end, host) for host in self._hosts]):
            pass
        if service is not None:
            service.shutdown()

    def _reason(self, number: int, error: Exception) -> str:
        """What a host says, in a line: XLA ends a process with all that is on its stack."""
        words = " ".join(str(error).splitlines()[:_MOST_LINES])
        return f"host {self._hosts[number].name}: {words}"

    def _make(self) -> list[str]:
        """Make a mesh; gives what went wrong."""
        self._service, setups = self._new_mesh()
        calls = [
            partial(_start, host, replace(setup, device_ids=self._positions))
            for host, setup in zip(self._hosts, setups, strict=True)
        ]
        try:
            answers = list(_together(calls))
        except BaseException:
            self.close()
            raise
        reasons = [self._reason(number, error) for number, error in answers]
        if reasons:
            self.close()
        return reasons

    def _failed_for_good(
        self, serialized: Sequence[bytes], suspects: dict[int, Profile], reasons: Sequence[str]
    ) -> Iterator[Finished]:
        """After a mesh was lost: the programs that are not tried again."""
        logger.warning("a mesh was lost while it measured: %s", "; ".join(reasons))
        self._lost_in_a_row += 1
        for index, profile in suspects.items():
            self._lost_at[serialized[index]] += 1
            if self._lost_at[serialized[index]] >= ATTEMPTS or profile.failure == "out_of_memory":
                self._lost_in_a_row = 0
                yield Finished(index, profile)
        if self._lost_in_a_row > ATTEMPTS:
            raise ProfilingError.no_mesh(self._lost_in_a_row, reasons)


def _start(host: Host, setup: Setup) -> Iterator[None]:
    host.start(setup)
    return iter(())


def _measured(host: Host, task: Task) -> Iterator[Finished]:
    for event in host.measure(task):
        if isinstance(event, TaskDone):
            return
        yield event
    raise HostLostError("its process ended")


def _end(host: Host) -> Iterator[None]:
    host.end()
    return iter(())


def _together(calls: Sequence[Callable[[], Iterator[Any]]]) -> Iterator[tuple[int, Any]]:
    """What each host's call gives, as it comes, until it ends or raises; what it raises is the last thing it gives.

    All calls run at the same time. When one has raised, the others have `_GRACE_S` to say what they know.
    """
    arrived: queue.SimpleQueue[tuple[int, Any, bool]] = queue.SimpleQueue()

    def run(number: int, call: Callable[[], Iterator[Any]]) -> None:
        try:
            for value in call():
                arrived.put((number, value, False))
        except Exception as error:  # noqa: BLE001  it is told to the thread that waits
            arrived.put((number, error, True))
        else:
            arrived.put((number, None, True))

    for number, call in enumerate(calls):
        threading.Thread(target=run, args=(number, call), daemon=True).start()
    running, wait_s = len(calls), None
    while running:
        try:
            number, value, is_last = arrived.get(timeout=wait_s)
        except queue.Empty:
            return
        running -= is_last
        if isinstance(value, Exception):
            wait_s = _GRACE_S
        if value is not None:
            yield number, value


def ended(profile: Profile) -> bool:
    """Whether a host's process ended with this program: whatever is wrong with a program that runs ends it."""
    return profile.status == "failed" and profile.failure != "compile_failed"


def of_all_hosts(profiles: Sequence[Profile]) -> Profile:
    """One profile of those that the hosts made of the same runs: each run's longest time, the most memory."""
    for profile in profiles:
        if profile.status == "failed":
            return profile
    first = profiles[0]
    samples = zip(*(profile.samples_s for profile in profiles), strict=True)
    most = {
        name: max(getattr(profile, name) for profile in profiles)
        for name in ("compile_s", "argument_bytes", "output_bytes", "temporary_bytes")
        if all(getattr(profile, name) is not None for profile in profiles)
    }
    return replace(first, samples_s=tuple(map(max, samples)), **most)
