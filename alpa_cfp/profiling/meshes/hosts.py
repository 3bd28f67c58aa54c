"""Measure programs on a mesh of several hosts, which is made anew when one of them is lost.

Takes the hosts, each with a supervisor that can be called, and groups of modules; gives a profile for each, like the
process that measures on a mesh of this machine (`isolated`). All hosts get the same tasks and do the same runs in the
same order, so they meet in the programs' collectives. A run takes as long as on the host where it takes longest. While
programs are timed, nothing else that this process measures is timed on the hosts' machines (`machines`).

The mesh is the unit of failure. A host that dies or hangs, or on which a program fails while it runs, ends the mesh;
another one is made on the same nodes, and what is not finished is measured there. A program at which meshes were lost
again and again has failed (`losses`). Invariants: every wait ends if those of the hosts do; no call leaves a mesh
behind that cannot be used; a finished profile is given as soon as all hosts have it.
"""

import logging
import queue
import random
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling.meshes.losses import ATTEMPTS, Losses, Progress
from alpa_cfp.profiling.meshes.machines import Machines, StoppedError
from alpa_cfp.profiling.process.events import Finished
from alpa_cfp.profiling.process.phases import Done, measure_in_phases
from alpa_cfp.profiling.process.protocol import CompileTask, Setup, Suspected, Task, TaskDone
from alpa_cfp.spmd.distributed.runtime import Service
from alpa_cfp.spmd.module.hlo_module import HloModule

logger = logging.getLogger(__name__)

# Of what a process wrote before it ended.
_MOST_LINES = 2
# How long the other hosts have to say at which program they were when one was lost.
_GRACE_S = 2.0


class HostLostError(Exception):
    """A host's supervisor is gone, or does not answer."""


class DevicesTakenError(Exception):
    """Somebody else has the devices that a host is to hold; it would be long until they are free."""


class ProcessEndedError(Exception):
    """The process that measures on a host ended; its supervisor is there."""


class Host(Protocol):
    """A host, by its supervisor. Each call is made in a thread of its own, and ends, by an error if need be."""

    @property
    def name(self) -> str:
        """As people know it."""
        ...

    @property
    def machine(self) -> str:
        """What its machine is known by, which may have other hosts, too."""
        ...

    def start(self, setup: Setup) -> None:
        """Make a supervisor and start it; see `Supervisor.start`.

        Raises:
            HostLostError, ProfilingError: that is not possible.
        """
        ...

    def do(self, task: CompileTask | Task) -> Iterator[Done]:
        """See `Supervisor.do`.

        Raises:
            HostLostError, ProfilingError: it is lost.
        """
        ...

    def end(self) -> None:
        """End the supervisor, whatever it does, and its process. Raises nothing."""
        ...


class HostsWorker:
    """Measures groups of programs on a mesh of several hosts; the mesh is there from the first group until `close`.

    Args:
        hosts: The hosts, in the order of the mesh.
        new_mesh: Starts the service of a new mesh, and gives each host's setup for it.
        machines: Who may use which machine.
        losses: At which programs meshes were lost, this one or others that measure the same programs.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        new_mesh: Callable[[], tuple[Service, Sequence[Setup]]],
        machines: Machines,
        losses: Losses,
    ) -> None:
        self._hosts, self._new_mesh = tuple(hosts), new_mesh
        self._machines, self._losses = machines, losses
        self._hosts_of_machine = Counter(host.machine for host in hosts)
        self._service: Service | None = None
        self._lost_in_a_row = 0

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
            with self._machines.used("compile", self._hosts_of_machine, stop):
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

    def measure(
        self, modules: Sequence[HloModule], drawn: random.Random, samples: int, stop: threading.Event
    ) -> Generator[Finished]:
        """Measure a group, each program so often, until `stop` is set.

        What is not finished at the end, because the mesh was lost before, can be given again.

        Raises:
            ProfilingError: no mesh can be made, or it is lost again and again and nobody knows at which program.
            StoppedError: `stop` was set.
        """
        self.start(stop)
        yield from measure_in_phases(modules, samples, drawn, self._losses.suspects, partial(self._do, stop))

    def close(self) -> None:
        """End the mesh, and all processes of its hosts; can be called in any thread, and again."""
        service, self._service = self._service, None
        for _ in _together([partial(_end, host) for host in self._hosts]):
            pass
        if service is not None:
            service.shutdown()

    def _do(self, stop: threading.Event, task: CompileTask | Task) -> Generator[Done]:
        progress = Progress(len(self._hosts))
        errors: list[tuple[int, Exception]] = []
        done = False
        with self._machines.used("time" if isinstance(task, Task) else "compile", self._hosts_of_machine, stop):
            try:
                for number, event in _together([partial(_done, host, task) for host in self._hosts]):
                    if isinstance(event, Exception):
                        errors.append((number, event))
                    elif (finished := progress.add(event)) is not None:
                        self._lost_in_a_row = 0
                        yield finished
                done = not errors
            finally:
                # Also where the caller has enough: the hosts are in the middle of something. They may go on until they
                # are ended, so the machines are still theirs.
                if not done:
                    self.close()
        if done:
            yield TaskDone()
        elif not stop.is_set():
            yield from self._after_a_loss(task, progress, errors)

    def _after_a_loss(
        self, task: CompileTask | Task, progress: Progress, errors: Sequence[tuple[int, Exception]]
    ) -> Iterator[Done]:
        """What is known now of the programs at which a mesh was lost."""
        reasons = [self._reason(number, error) for number, error in errors]
        logger.warning("a mesh was lost while it measured: %s", "; ".join(reasons))
        self._lost_in_a_row += 1
        from_outside = any(isinstance(error, HostLostError) for _, error in errors)
        for known in self._losses.learn(task.modules, progress, from_outside=from_outside):
            self._lost_in_a_row = 0
            yield known
        if self._lost_in_a_row > ATTEMPTS:
            attempts, self._lost_in_a_row = self._lost_in_a_row, 0
            raise ProfilingError.no_mesh(attempts, reasons)

    def _reason(self, number: int, error: Exception) -> str:
        """What a host says, in a line: XLA ends a process with all that is on its stack."""
        words = " ".join(str(error).splitlines()[:_MOST_LINES])
        return f"host {self._hosts[number].name}: {words}"

    def _make(self) -> list[tuple[int, Exception]]:
        """Make a mesh; gives what went wrong."""
        self._service, setups = self._new_mesh()
        calls = [
            partial(_start, host, replace(setup, share=self._hosts_of_machine[host.machine]))
            for host, setup in zip(self._hosts, setups, strict=True)
        ]
        try:
            errors = list(_together(calls))
        except BaseException:
            self.close()
            raise
        if errors:
            self.close()
        return errors


def _start(host: Host, setup: Setup) -> Iterator[None]:
    host.start(setup)
    return iter(())


def _done(host: Host, task: CompileTask | Task) -> Iterator[Finished | Suspected]:
    for event in host.do(task):
        if isinstance(event, TaskDone):
            return
        yield event
    raise ProcessEndedError("its process ended")


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
