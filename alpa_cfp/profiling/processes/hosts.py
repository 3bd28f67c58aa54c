"""The processes of a `jax.distributed` program as hosts of a mesh to measure on; see `meshes.hosts.Host`.

A process measures in a worker of its own (`WorkerHost`), or itself, where its devices' memory belongs to it
(`InProcessHost`). `RemoteHost` stands in the first process for another one, which does what it is told (`serving`).
Invariants: a host does one thing at a time, the next one when the one before is over; each call ends.
"""

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from alpa_cfp.profiling.meshes.hosts import HostLostError, ProcessEndedError
from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.process.group import Loaded, cores, do_task
from alpa_cfp.profiling.process.protocol import Finished, Setup, Stage, Started, Task, TaskDone, TaskEvent
from alpa_cfp.profiling.process.supervisor import Supervisor
from alpa_cfp.profiling.processes.peers import ChannelShutError, Peer, PeerLostError
from alpa_cfp.spmd.distributed.host_client import HostClient

_CHECK_S = 0.5
_LIMITS: dict[Stage, str] = {"compile": "compile_limit_s", "run": "run_limit_s", "inspect": "compile_limit_s"}


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a host in another process; what it gives comes on its channel.

    Attributes:
        channel: The channel.
        request: `Host.start` is called with a setup, `Host.do` with a task.
    """

    channel: int
    request: Setup | Task


@dataclass(frozen=True, slots=True)
class EndHost:
    """A call of `Host.end`, which gives nothing."""


@dataclass(frozen=True, slots=True)
class Returned:
    """A call is over; it raised `error`, if that is not None."""

    error: Exception | None = None


class WorkerHost:
    """This process with a worker process, which it supervises."""

    def __init__(self, name: str, machine: str, options: MeasureOptions) -> None:
        self.name, self.machine = name, machine
        self._supervisor, self._lock = Supervisor(options), threading.Lock()

    def start(self, setup: Setup) -> None:
        """See `meshes.hosts.Host`."""
        with self._lock:
            self._supervisor.start(setup)

    def do(self, task: Task) -> Iterator[TaskEvent]:
        """See `meshes.hosts.Host`."""
        with self._lock:
            yield from self._supervisor.do(task)

    def end(self) -> None:
        """See `meshes.hosts.Host`."""
        self._supervisor.kill()
        # Again, since a start may just have been making what is ended here.
        while not self._lock.acquire(timeout=_CHECK_S):
            self._supervisor.kill()
        try:
            self._supervisor.close()
        finally:
            self._lock.release()


class InProcessHost:
    """This process, which measures itself, with the devices of all processes.

    Nothing can end a program that hangs here. The call that waits for it ends at the limit of the options, and no other
    one is begun.

    Args:
        name, machine: See `meshes.hosts.Host`.
        options: The time limits of a program.
        devices: The devices of the mesh, in its order.
    """

    def __init__(self, name: str, machine: str, options: MeasureOptions, devices: Sequence[Any]) -> None:
        self.name, self.machine = name, machine
        self._options, self._client = options, HostClient(devices)
        self._loaded: dict[bytes, Loaded] = {}
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._share = 1

    def start(self, setup: Setup) -> None:
        """See `meshes.hosts.Host`; the devices are there already."""
        self._raise_if_busy()
        self._share = setup.share
        self._ended.clear()

    def do(self, task: Task) -> Iterator[TaskEvent]:
        """See `meshes.hosts.Host`."""
        self._raise_if_busy()
        arrived: queue.SimpleQueue[TaskEvent | Exception] = queue.SimpleQueue()
        activities: dict[int, tuple[Started, float]] = {}
        self._thread = threading.Thread(target=self._run, args=(task, activities, arrived), daemon=True)
        self._thread.start()
        while True:
            try:
                event = arrived.get(timeout=_CHECK_S)
            except queue.Empty:
                if self._ended.is_set():
                    raise HostLostError("it was ended") from None
                self._raise_if_overdue(activities)
                continue
            if isinstance(event, Exception):
                raise event
            yield event
            if isinstance(event, TaskDone):
                return

    def end(self) -> None:
        """See `meshes.hosts.Host`."""
        self._ended.set()
        if self._thread is None or not self._thread.is_alive():
            for program in self._loaded.values():
                program.executable.delete()
            self._loaded.clear()

    def _run(
        self,
        task: Task,
        activities: dict[int, tuple[Started, float]],
        arrived: queue.SimpleQueue[TaskEvent | Exception],
    ) -> None:
        def report(started: Started | None, thread: int) -> None:
            if started is None:
                activities.pop(thread, None)
            else:
                activities[thread] = started, time.monotonic()

        try:
            for event in do_task(task, self._client, max(1, cores() // self._share), self._loaded, report):
                arrived.put(event)
                # As a worker does: the other processes may be in the middle of it, and would not meet this one in the
                # next.
                if isinstance(event, Finished) and event.profile.failure not in (None, "compile_failed"):
                    raise ProcessEndedError("a program failed there")
        except Exception as error:  # noqa: BLE001  it is passed to the thread that waits
            arrived.put(error)
        else:
            arrived.put(TaskDone())

    def _raise_if_overdue(self, activities: dict[int, tuple[Started, float]]) -> None:
        now = time.monotonic()
        for started, since in tuple(activities.values()):
            name = _LIMITS[started.stage]
            limit_s = getattr(self._options, name)
            if now - since > limit_s:
                raise HostLostError(f"it did not come to the end of a program within {name}={limit_s:g}")

    def _raise_if_busy(self) -> None:
        if self._thread is not None:
            self._thread.join(_CHECK_S)
            if self._thread.is_alive():
                raise HostLostError("it is still in the middle of a program that was given up, which nothing can end")


class RemoteHost:
    """Another process, in the first one.

    Args:
        machine: The identity of its machine.
        peer: The connection to it.
    """

    _channels = count(1)

    def __init__(self, machine: str, peer: Peer) -> None:
        self.name, self.machine = name_of(peer.process), machine
        self._peer, self._channel = peer, 0

    def start(self, setup: Setup) -> None:
        """See `meshes.hosts.Host`."""
        for _ in self._call(setup):
            pass

    def do(self, task: Task) -> Iterator[TaskEvent]:
        """See `meshes.hosts.Host`."""
        return self._call(task)

    def end(self) -> None:
        """See `meshes.hosts.Host`; what goes on there ends soon afterwards, and before another call begins."""
        if self._channel:
            self._peer.shut(self._channel)
        if self._peer.lost is None:
            try:
                self._peer.send(0, EndHost())
            except PeerLostError:
                return

    def _call(self, request: Setup | Task) -> Iterator[Any]:
        self._channel = channel = next(self._channels)
        self._peer.open(channel)
        try:
            self._peer.send(0, Call(channel, request))
            while True:
                value = self._peer.receive(channel)
                if isinstance(value, Returned):
                    if value.error is not None:
                        raise value.error
                    return
                yield value
        except PeerLostError as error:
            raise HostLostError(error.reason) from error
        except ChannelShutError as error:
            raise HostLostError("it was ended") from error
        finally:
            self._peer.shut(channel)


def name_of(process: int) -> str:
    """The name of a process for messages."""
    return f"process {process}"
