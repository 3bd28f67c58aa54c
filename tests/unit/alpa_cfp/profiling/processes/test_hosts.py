"""Processes as hosts of a mesh: what the first one calls is done in the other, and each call ends."""

import random
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import pytest

from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling import MeasureOptions
from alpa_cfp.profiling.meshes.hosts import HostLostError, ProcessEndedError
from alpa_cfp.profiling.process.protocol import (
    CompileTask,
    Finished,
    MeasureTask,
    Setup,
    Started,
    Task,
    TaskDone,
    TaskEvent,
    failed,
)
from alpa_cfp.profiling.process.setups import jax_config
from alpa_cfp.profiling.processes import hosts
from alpa_cfp.profiling.processes.hosts import InProcessHost, RemoteHost, WorkerHost
from alpa_cfp.profiling.processes.peers import Failed, Peer, PeerLostError
from alpa_cfp.profiling.processes.serving import MakeHost, Planned, serve
from unit.alpa_cfp.profiling.programs import product, worker_pid

pytestmark = pytest.mark.slow

OPTIONS = MeasureOptions(samples=1, progress=False, run_limit_s=1.0, compile_limit_s=1.0)
SETUP = Setup("cpu", (), (), {})
TASK = CompileTask((b"a", b"b"))
FINISHED = Finished(0, failed("no such program", "compile_failed"))


class FakeHost:
    """A host that gives what a test says, and waits until it is ended where the test says nothing."""

    name, machine = "fake", "this one"

    def __init__(self, events: tuple[Any, ...] | None = (FINISHED, TaskDone()), start: Exception | None = None) -> None:
        self.events, self.error = events, start
        self.calls: list[str] = []
        self.ended, self.waits = threading.Event(), threading.Event()

    def start(self, setup: Setup) -> None:
        self.calls.append("start")
        self.ended.clear()
        if self.error is not None:
            raise self.error

    def do(self, task: Task) -> Iterator[TaskEvent]:
        self.calls.append("do")
        if self.events is None:
            self.waits.set()
            assert self.ended.wait(20)
            raise HostLostError("it was killed")
        for event in self.events:
            if isinstance(event, Exception):
                raise event
            yield event

    def end(self) -> None:
        self.calls.append("end")
        self.ended.set()


class OtherProcess:
    """A process that serves, as a thread, and what stands for it in the first one."""

    def __init__(self, host: FakeHost) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            first = socket.create_connection(listener.getsockname())
            second, _ = listener.accept()
        self.peer, self.own = Peer(1, first), Peer(0, second)
        self.remote = RemoteHost("that machine", self.peer)
        self._threads = ThreadPoolExecutor(1)
        self.served = self._threads.submit(serve, self.own, lambda _: host)
        self.peer.send(0, MakeHost(OPTIONS))

    def close(self) -> None:
        for peer in (self.peer, self.own):
            peer.end()
        for peer in (self.peer, self.own):
            peer.close()
        self._threads.shutdown()


@pytest.fixture
def serving() -> Iterator[Callable[[FakeHost], OtherProcess]]:
    """Makes a process that serves with a host."""
    made: list[OtherProcess] = []

    def make(host: FakeHost) -> OtherProcess:
        made.append(OtherProcess(host))
        return made[-1]

    yield make
    for each in made:
        each.close()


Serving = Callable[[FakeHost], OtherProcess]


def test_a_task_is_done_in_the_other_process(serving: Serving) -> None:
    host = FakeHost()
    other = serving(host)
    other.remote.start(SETUP)
    assert list(other.remote.do(TASK)) == [FINISHED, TaskDone()]
    assert other.remote.name == "process 1"
    other.peer.send(0, Planned("the plan"))
    assert other.served.result(20) == "the plan"
    assert host.calls[:3] == ["start", "do", "end"]
    assert set(host.calls[3:]) <= {"end"}  # once more where the call was just returning


@pytest.mark.parametrize("error", [ProfilingError.no_worker("no memory"), HostLostError("gone")], ids=repr)
def test_errors_of_the_other_process_host_are_raised_here(serving: Serving, error: Exception) -> None:
    other = serving(FakeHost(start=error))
    with pytest.raises(type(error), match=str(error)[:20]):
        other.remote.start(SETUP)


def test_any_other_error_there_is_the_loss_of_the_host(serving: Serving) -> None:
    other = serving(FakeHost((FINISHED, KeyError("a mistake"))))
    events = other.remote.do(TASK)
    assert next(events) == FINISHED
    with pytest.raises(HostLostError, match="KeyError: 'a mistake'"):
        next(events)


def test_a_call_that_hangs_there_ends_when_the_host_is_ended_and_the_next_one_works(serving: Serving) -> None:
    host = FakeHost(None)
    other = serving(host)
    with ThreadPoolExecutor() as threads:
        hanging = threads.submit(list, other.remote.do(TASK))
        assert host.waits.wait(20)
        other.remote.end()
        with pytest.raises(HostLostError, match="it was ended"):
            hanging.result(20)
    host.events = (TaskDone(),)
    other.remote.start(SETUP)
    assert list(other.remote.do(TASK)) == [TaskDone()]
    assert host.calls[:2] == ["do", "end"]


def test_a_process_that_fails_is_a_lost_host(serving: Serving) -> None:
    other = serving(FakeHost(None))
    with ThreadPoolExecutor() as threads:
        hanging = threads.submit(list, other.remote.do(TASK))
        other.own.send(0, Failed.by(1, ValueError("its own")))
        with pytest.raises(HostLostError, match="ValueError: its own"):
            hanging.result(20)
    with pytest.raises(HostLostError, match="ValueError: its own"):
        other.remote.start(SETUP)
    other.remote.end()


def test_a_process_whose_first_one_is_gone_ends_its_host(serving: Serving) -> None:
    host = FakeHost(None)
    other = serving(host)
    with ThreadPoolExecutor() as threads:
        hanging = threads.submit(list, other.remote.do(TASK))
        assert host.waits.wait(20)
        other.peer.close(0)
        with pytest.raises(PeerLostError, match="process 0: it ended"):
            other.served.result(20)
        with pytest.raises(HostLostError):
            hanging.result(20)
    assert host.ended.is_set()


def own_setup() -> Setup:
    device = jax.devices()[0]
    return Setup("cpu", tuple(range(8)), (device.device_kind,) * 8, jax_config())


def test_ending_a_host_while_its_worker_starts_leaves_no_worker() -> None:
    host = WorkerHost("here", "this one", OPTIONS)
    with ThreadPoolExecutor() as threads:
        starting = threads.submit(host.start, own_setup())
        while worker_pid(host._supervisor) is None and not starting.done():
            pass
        host.end()
        with pytest.raises(ProfilingError, match="there is no process of its own for profiling"):
            starting.result(60)
    assert worker_pid(host._supervisor) is None


def in_process() -> InProcessHost:
    return InProcessHost("here", "this one", OPTIONS, jax.devices())


def test_a_process_measures_itself() -> None:
    program = product().as_serialized_hlo_module_proto()
    options = MeasureOptions()
    host = InProcessHost("here", "this one", options, jax.devices())
    host.start(SETUP)
    assert list(host.do(CompileTask((program,)))) == [TaskDone()]
    finished, done = host.do(MeasureTask((program,), 3, random.Random(0)))
    assert isinstance(finished, Finished)
    assert (finished.profile.status, len(finished.profile.samples_s), done) == ("measured", 3, TaskDone())
    host.end()


def test_a_program_that_hangs_in_this_process_ends_the_call_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def hangs(*arguments: Any) -> Iterator[Finished]:
        arguments[-1](Started(0, "run"), 0)
        over.wait(30)
        yield FINISHED

    monkeypatch.setattr(hosts, "do_task", hangs)
    host = in_process()
    host.start(SETUP)
    with pytest.raises(HostLostError, match="did not come to the end of a program within run_limit_s=1"):
        list(host.do(TASK))
    host.end()
    with pytest.raises(HostLostError, match="still in the middle of a program that was given up"):
        host.start(SETUP)
    over.set()
    host._thread.join(20)  # pyright: ignore[reportOptionalMemberAccess]
    host.start(SETUP)


def test_ending_this_process_as_a_host_ends_the_wait_for_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    over, began = threading.Event(), threading.Event()

    def hangs(*_: Any) -> Iterator[Finished]:
        began.set()
        over.wait(30)
        yield FINISHED

    monkeypatch.setattr(hosts, "do_task", hangs)
    host = in_process()
    host.start(SETUP)
    with ThreadPoolExecutor() as threads:
        hanging = threads.submit(list, host.do(TASK))
        assert began.wait(20)
        host.end()
        with pytest.raises(HostLostError, match="it was ended"):
            hanging.result(20)
    over.set()


def test_no_program_runs_in_this_process_after_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Finished(0, failed("out of memory", "crashed"))
    monkeypatch.setattr(hosts, "do_task", lambda *_: iter([bad, FINISHED]))
    host = in_process()
    host.start(SETUP)
    events = host.do(TASK)
    assert next(events) == bad
    with pytest.raises(ProcessEndedError, match="a program failed there"):
        next(events)
