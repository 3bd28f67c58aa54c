"""Hosts that compute nothing and fail as they are told, for tests of what measures on several of them.

A `Cluster` has machines, on which hosts may be. It notes what is done where and when, and complains where two slots
time on one machine at once. Each task that a host is given takes the next of the cluster's fates.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from alpa_cfp.database import Profile, utc_now
from alpa_cfp.profiling.meshes.hosts import HostLostError, HostsRunner
from alpa_cfp.profiling.meshes.losses import Losses
from alpa_cfp.profiling.meshes.machines import Machines
from alpa_cfp.profiling.process.protocol import (
    Finished,
    MeasureTask,
    Setup,
    Suspected,
    Task,
    TaskDone,
    TaskEvent,
    failed,
)

# Sound; the supervisor is lost; the process ends by itself, is killed from outside, or ends while all are compiled; a
# program cannot be compiled; the next start fails.
Fate = Literal["sound", "lost", "crashed", "killed", "suspected", "uncompilable", "no start"]
FATES: tuple[Fate, ...] = ("sound", "lost", "crashed", "killed", "suspected", "uncompilable", "no start")


def measured_profile(*samples_s: float) -> Profile:
    """That of a program that takes nothing else."""
    sizes = dict.fromkeys(("argument_bytes", "output_bytes", "aliased_bytes", "temporary_bytes"), 0)
    return Profile(status="measured", created_at=utc_now(), samples_s=samples_s, compile_s=0.1, **sizes)


@dataclass(frozen=True)
class Module:
    """A program that is only its name."""

    name: str

    def as_serialized_hlo_module_proto(self) -> bytes:
        return self.name.encode()


@dataclass
class Cluster:
    """What hosts have in common.

    Attributes:
        fates: Of the next tasks.
        times_alone: See `Machines`.
        meanwhile: Called by a host in the middle of each task, with what it does; may say how that ends.
    """

    fates: deque[Fate] = field(default_factory=deque)
    times_alone: bool = True
    meanwhile: Callable[["FakeHost", Task], Fate | None] = lambda *_: None

    def __post_init__(self) -> None:
        self.machines, self.losses = Machines(times_alone=self.times_alone), Losses()
        self.changes = threading.Lock()
        self.active: dict[FakeHost, Task] = {}
        self.complaints: list[str] = []
        self.tasks: list[tuple[str, Task]] = []

    def slot(self, *machines: str) -> HostsRunner:
        """A mesh of a host on each of these machines."""
        slot = object()
        hosts = [FakeHost(self, slot, machine) for machine in machines]
        setups = [Setup("cpu", (), (), {})] * len(hosts)
        return HostsRunner(hosts, lambda: (FakeService(), setups), self.machines, self.losses)

    def next_fate(self) -> Fate:
        with self.changes:
            return self.fates.popleft() if self.fates else "sound"

    def begin(self, host: "FakeHost", task: Task) -> None:
        with self.changes:
            self.tasks.append((host.machine, task))
            for other, others in self.active.items():
                uses = {type(task), type(others)}
                if (
                    other.machine == host.machine
                    and other.slot is not host.slot
                    and (uses == {MeasureTask} or (self.times_alone and MeasureTask in uses))
                ):
                    self.complaints.append(f"{task} and {others} at once on {host.machine}")
            self.active[host] = task

    def finish(self, host: "FakeHost") -> None:
        with self.changes:
            self.active.pop(host, None)


class FakeService:
    """A service that is nothing."""

    address = "nowhere"

    def shutdown(self) -> Any:
        """There is nothing."""


@dataclass(eq=False)
class FakeHost:
    """A host of a cluster."""

    cluster: Cluster
    slot: object
    machine: str
    is_up: bool = False
    starts: int = 0

    @property
    def name(self) -> str:
        return f"on-{self.machine}"

    def start(self, setup: Setup) -> None:
        del setup
        self.starts += 1
        if self.cluster.next_fate() == "no start":
            raise HostLostError("it does not start")
        self.is_up = True

    def do(self, task: Task) -> Iterator[TaskEvent]:
        self._hold()
        self.cluster.begin(self, task)
        try:
            fate = self.cluster.meanwhile(self, task)
            yield from self._outcome(task, fate or self.cluster.next_fate())
        finally:
            self.cluster.finish(self)

    def end(self) -> None:
        self.is_up = False
        # What it did has ended with it.
        self.cluster.finish(self)

    def _outcome(self, task: Task, fate: Fate) -> Iterator[TaskEvent]:
        last = len(task.modules) - 1
        if isinstance(task, MeasureTask):
            for index in range(last):
                self._hold()
                yield Finished(index, measured_profile(0.5))
        if fate == "lost":
            raise HostLostError("it is gone")
        if fate in ("crashed", "killed"):
            yield Finished(last, failed("it ended", "crashed"), is_permanent=fate == "crashed")
            return
        if isinstance(task, MeasureTask):
            self._hold()
            yield Finished(last, measured_profile(0.5))
        elif fate == "uncompilable":
            yield Finished(last, failed("it cannot be compiled", "compile_failed"))
        elif fate == "suspected":
            together = [index for index in range(last + 1) if index not in task.alone]
            if len(together) > 1:
                yield Suspected(tuple(together))
                return
        self._hold()
        yield TaskDone()

    def _hold(self) -> None:
        if not self.is_up:
            raise HostLostError("it was ended")


def tasks_of(cluster: Cluster, kind: type) -> Sequence[tuple[str, Any]]:
    """The tasks of a kind that the hosts were given, with their machines."""
    return [(machine, task) for machine, task in cluster.tasks if isinstance(task, kind)]
