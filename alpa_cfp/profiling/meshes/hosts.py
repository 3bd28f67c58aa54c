"""Measure programs on a mesh of several hosts, which is made anew when one of them is lost.

Takes the hosts, each with a supervisor, and groups of modules; gives a profile for each module, like a runner on this
machine (`runners`). All hosts get the same tasks and make the same runs in the same order, so they meet in the
collectives. The time of a run is that of the slowest host. While programs are timed, nothing else that this process
measures is timed on the hosts' machines (`machines`).

The mesh is the unit of failure. A host that dies or hangs, or on which a program fails while it runs, ends the mesh;
another one is made on the same nodes, and measures what is not finished. A program at which meshes were lost repeatedly
has failed (`losses`). Invariants: every wait ends if those of the hosts do; no call leaves an unusable mesh behind; a
finished profile is given as soon as all hosts have it.
"""

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling.meshes.losses import ATTEMPTS, Losses, Progress
from alpa_cfp.profiling.meshes.machines import Machines, StoppedError
from alpa_cfp.profiling.process.phases import measure_in_phases
from alpa_cfp.profiling.process.protocol import (
    CompileTask,
    Finished,
    Setup,
    Suspected,
    Task,
    TaskDone,
    TaskEvent,
)
from alpa_cfp.profiling.queue import Group

logger = logging.getLogger(__name__)

# Of the error output of a process.
_MOST_LINES = 2
# After a loss, the time in which the other hosts can report at which program they were.
_GRACE_S = 2.0


class HostLostError(Exception):
    """A host's supervisor is gone, or does not answer."""


class DevicesTakenError(Exception):
    """The devices that a host is to hold belong to another process, and will for long."""


class ProcessEndedError(Exception):
    """The worker on a host ended; its supervisor is there."""


class Host(Protocol):
    """A host with a supervisor. Each call is made in a thread of its own, and must end, by an error if need be."""

    @property
    def name(self) -> str:
        """The name for messages."""
        ...

    @property
    def machine(self) -> str:
        """The identity of its machine, which may have other hosts, too."""
        ...

    def start(self, setup: Setup) -> None:
        """Make a supervisor and start its worker; see `Supervisor.start`.

        Raises:
            HostLostError, ProfilingError: that is not possible.
        """
        ...

    def do(self, task: Task) -> Iterator[TaskEvent]:
        """See `Supervisor.do`.

        Raises:
            HostLostError, ProfilingError: it is lost.
        """
        ...

    def end(self) -> None:
        """End the supervisor, whatever it does, and its worker. Raises nothing."""
        ...


class MeshService(Protocol):
    """The service by which the hosts of a mesh find each other; see `spmd.distributed.runtime`."""

    def shutdown(self) -> None:
        """End it."""
        ...


class HostsRunner:
    """Measures groups of programs on a mesh of several hosts; the mesh lasts from the first group to `close`.

    Args:
        hosts: The hosts, in the order of the mesh.
        new_mesh: Starts the service of a new mesh, and gives each host's setup for it.
        machines: The locks of the hosts' machines.
        losses: The losses of this mesh and of others that measure the same programs.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        new_mesh: Callable[[], tuple[MeshService, Sequence[Setup]]],
        machines: Machines,
        losses: Losses,
    ) -> None:
        self._hosts, self._new_mesh = tuple(hosts), new_mesh
        self._machines, self._losses = machines, losses
        self._hosts_of_machine = Counter(host.machine for host in hosts)
        self._service: MeshService | None = None
        self._losses_in_a_row = 0

    @property
    def is_started(self) -> bool:
        """Whether there is a mesh."""
        return self._service is not None

    def start(self, stop: threading.Event) -> None:
        """Make the mesh, if there is none.

        Raises:
            ProfilingError: it cannot be made; the message names the hosts for which it cannot.
            StoppedError: `stop` was set.
        """
        reasons: list[str] = []
        attempts = 0
        while self._service is None and attempts < ATTEMPTS:
            with self._machines.reserved("compile", self._hosts_of_machine, stop):
                errors = self._make()
            if stop.is_set():
                self.close()
                raise StoppedError
            attempts += 1
            if errors:
                reasons = [self._reason(number, error) for number, error in errors]
                logger.warning("the mesh to measure on cannot be made: %s", "; ".join(reasons))
            if any(isinstance(error, DevicesTakenError) for _, error in errors):
                break
        if self._service is None:
            raise ProfilingError.no_mesh(attempts, reasons)

    def measure(self, group: Group, stop: threading.Event) -> Generator[Finished]:
        """Measure a group until `stop` is set; can be called in another thread than `close`.

        What is not finished at the end, because the mesh was lost before, can be given again.

        Raises:
            ProfilingError: no mesh can be made, or it is lost repeatedly and nothing tells at which program.
            StoppedError: `stop` was set.
        """
        self.start(stop)
        do = partial(self._do, stop)
        suspects = self._losses.suspects
        yield from measure_in_phases(group.modules, group.samples, group.rng, suspects, do, group.references)

    def close(self) -> None:
        """End the mesh and all processes of its hosts, whatever they do; can be called in any thread, and again."""
        service, self._service = self._service, None
        list(_call_all([host.end for host in self._hosts]))
        if service is not None:
            service.shutdown()

    def _do(self, stop: threading.Event, task: Task) -> Generator[TaskEvent]:
        progress = Progress(len(self._hosts))
        errors: list[tuple[int, Exception]] = []
        done = False
        use = "compile" if isinstance(task, CompileTask) else "time"
        with self._machines.reserved(use, self._hosts_of_machine, stop):
            try:
                for number, event in _call_all([partial(_events, host, task) for host in self._hosts]):
                    if isinstance(event, Exception):
                        errors.append((number, event))
                    elif (finished := progress.add(event)) is not None:
                        self._losses_in_a_row = 0
                        yield finished
                done = not errors
            finally:
                # Also where the caller stops early. The hosts may go on until they are ended, so their machines stay
                # reserved until then.
                if not done:
                    self.close()
        if done:
            yield TaskDone()
        elif not stop.is_set():
            yield from self._after_a_loss(task, progress, errors)

    def _after_a_loss(
        self, task: Task, progress: Progress, errors: Sequence[tuple[int, Exception]]
    ) -> Iterator[TaskEvent]:
        """The programs that have failed, or are suspected, after the loss of a mesh."""
        reasons = [self._reason(number, error) for number, error in errors]
        logger.warning("a mesh was lost while it measured: %s", "; ".join(reasons))
        self._losses_in_a_row += 1
        from_outside = any(isinstance(error, HostLostError) for _, error in errors)
        for event in self._losses.add(task.modules, progress, from_outside=from_outside):
            self._losses_in_a_row = 0
            yield event
        if self._losses_in_a_row > ATTEMPTS:
            attempts, self._losses_in_a_row = self._losses_in_a_row, 0
            raise ProfilingError.no_mesh(attempts, reasons)

    def _reason(self, number: int, error: Exception) -> str:
        """A host's error in a line; that of a process which XLA ends has its whole stack."""
        text = " ".join(str(error).splitlines()[:_MOST_LINES])
        return f"host {self._hosts[number].name}: {text}"

    def _make(self) -> list[tuple[int, Exception]]:
        """Make a mesh; gives the errors of hosts, by their numbers."""
        self._service, setups = self._new_mesh()
        calls = [
            partial(host.start, replace(setup, share=self._hosts_of_machine[host.machine]))
            for host, setup in zip(self._hosts, setups, strict=True)
        ]
        try:
            errors = list(_call_all(calls))
        except BaseException:
            self.close()
            raise
        if errors:
            self.close()
        return errors


def _events(host: Host, task: Task) -> Iterator[Finished | Suspected]:
    for event in host.do(task):
        if isinstance(event, TaskDone):
            return
        yield event
    raise ProcessEndedError("its process ended")


def _call_all(calls: Sequence[Callable[[], Iterator[Any] | None]]) -> Iterator[tuple[int, Any]]:
    """Make one call for each host, all at the same time; gives the values of their iterators as they come.

    An exception is given as a call's last value. After one, the other calls have `_GRACE_S` to go on.
    """
    arrived: queue.SimpleQueue[tuple[int, Any, bool]] = queue.SimpleQueue()

    def run(number: int, call: Callable[[], Iterator[Any] | None]) -> None:
        try:
            for value in call() or ():
                arrived.put((number, value, False))
        except Exception as error:  # noqa: BLE001  it is passed to the thread that waits
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
