"""Programs are measured on a mesh of several hosts, without Ray; a mesh that is lost is made anew."""

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from unittest.mock import MagicMock

import pytest

from alpa_cfp.alpa.ray_hosts import RayHost
from alpa_cfp.database import Profile, ProfileDatabase, utc_now
from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling import DeviceDescription, MeasureOptions, Profiler
from alpa_cfp.profiling.meshes.hosts import HostLostError, HostsRunner
from alpa_cfp.profiling.meshes.losses import ATTEMPTS, Losses, of_all_hosts
from alpa_cfp.profiling.meshes.machines import Machines
from alpa_cfp.profiling.meshes.pool import Pool
from alpa_cfp.profiling.meshes.slots import Node, SlotHost
from alpa_cfp.profiling.process.protocol import MeasureTask, Setup, Task, TaskDone, TaskEvent
from alpa_cfp.profiling.process.setups import jax_config
from alpa_cfp.profiling.process.supervisor import Supervisor
from alpa_cfp.spmd.distributed.host_place import HostPlace
from alpa_cfp.spmd.distributed.runtime import Service, start_service
from alpa_cfp.spmd.module.hlo_module import HloModule
from unit.alpa_cfp.profiling.programs import product, scaled, worker_pid
from unit.alpa_cfp.spmd.helpers import MESH_2X4, split

pytestmark = pytest.mark.slow

QUIET = MeasureOptions(samples=2, progress=False, run_limit_s=20.0)
DEVICES = DeviceDescription("cpu", "4+4", "0.0.0")
IP = "127.0.0.1"
# Communicates between the hosts, each of which is a row of the mesh.
SUMMED = product(split(MESH_2X4, "", "x"), split(MESH_2X4, "x", ""))


class LocalHost:
    """A host whose supervisor is an object of this process."""

    machine = "this one"

    def __init__(self, number: int) -> None:
        self.name = f"local-{number}"
        self.supervisor: Supervisor | None = None
        self.starts = 0
        self.before_task: Callable[[LocalHost], None] = lambda _: None

    def start(self, setup: Setup) -> None:
        self.starts += 1
        self.supervisor = Supervisor(QUIET)
        self.supervisor.start(setup)

    def do(self, task: Task) -> Iterator[TaskEvent]:
        assert self.supervisor is not None
        self.before_task(self)
        return self.supervisor.do(task)

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.supervisor is not None
        pid = worker_pid(self.supervisor)
        assert pid is not None
        os.kill(pid, number)

    def end(self) -> None:
        if self.supervisor is not None and worker_pid(self.supervisor) is not None:
            self.kill()
        self.supervisor = None


def new_mesh(num_hosts: int = 2, devices: int = 4) -> tuple[Service, Sequence[Setup]]:
    service = start_service(IP, range(20000, 30000), num_hosts, heartbeat_s=10, shutdown_s=5)
    places = [
        HostPlace(service.address, num_hosts, host, IP, "cpu", devices, False, 30, 10, 5) for host in range(num_hosts)
    ]
    ids, kinds = tuple(range(num_hosts * devices)), ("cpu",) * (num_hosts * devices)
    return service, [Setup("cpu", ids, kinds, jax_config(), place, {"XLA_FLAGS": ""}) for place in places]


@pytest.fixture
def hosts() -> Iterator[list[LocalHost]]:
    made = [LocalHost(number) for number in range(2)]
    yield made
    for host in made:
        host.end()


def measured(hosts: Sequence[LocalHost], *modules: HloModule, options: MeasureOptions = QUIET) -> list[Profile]:
    worker = HostsRunner(hosts, new_mesh, Machines(times_alone=True), Losses())
    with Profiler((Pool([worker]), DEVICES), ProfileDatabase.in_memory(), options) as profiler:
        return profiler.measure(modules)


def test_a_program_with_collectives_is_measured_on_the_devices_of_all_hosts(hosts: list[LocalHost]) -> None:
    profiles = measured(hosts, SUMMED, scaled(2))
    assert [profile.status for profile in profiles] == ["measured", "measured"]
    assert [len(profile.collectives) for profile in profiles] == [1, 0]
    assert [len(profile.samples_s) for profile in profiles] == [2, 2]
    assert [host.starts for host in hosts] == [1, 1]  # one mesh for both


def test_hosts_start_as_soon_as_something_is_expected_that_is_not_known(
    hosts: list[LocalHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = ProfileDatabase.in_memory()

    def profiler() -> Profiler:
        worker = HostsRunner(hosts, new_mesh, Machines(times_alone=True), Losses())
        return Profiler((Pool([worker]), DEVICES), database, QUIET)

    with profiler() as first:
        first.expect([SUMMED])
        first.expect([scaled(2)])
        assert [profile.status for profile in first.measure([SUMMED])] == ["measured"]
        assert [host.starts for host in hosts] == [1, 1]
    with profiler() as second:
        second.expect([SUMMED])
    assert [host.starts for host in hosts] == [1, 1]
    has_started, start = threading.Event(), hosts[1].start

    def start_and_tell(setup: Setup) -> None:
        start(setup)
        has_started.set()

    monkeypatch.setattr(hosts[1], "start", start_and_tell)
    with profiler() as third:
        third.expect([scaled(2)])
        assert has_started.wait(60)
    # Started for nothing, and ended.
    assert [host.starts for host in hosts] == [2, 2]
    assert [host.supervisor for host in hosts] == [None, None]


def test_hosts_that_cannot_start_are_an_error_only_when_something_is_measured(
    hosts: list[LocalHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(setup: Setup) -> None:
        raise HostLostError("it is not there")

    monkeypatch.setattr(hosts[1], "start", start)
    worker = HostsRunner(hosts, new_mesh, Machines(times_alone=True), Losses())
    with Profiler((Pool([worker]), DEVICES), ProfileDatabase.in_memory(), QUIET) as profiler:
        profiler.expect([SUMMED])
        with pytest.raises(ProfilingError, match="it is not there"):
            profiler.measure([SUMMED])


def test_what_is_not_finished_when_a_host_is_killed_is_measured_on_a_new_mesh(hosts: list[LocalHost]) -> None:
    def kill_once(host: LocalHost) -> None:
        if host.starts == 1:
            host.kill()

    hosts[1].before_task = kill_once
    profiles = measured(hosts, SUMMED, scaled(2))
    assert [profile.status for profile in profiles] == ["measured", "measured"]
    assert [host.starts for host in hosts] == [2, 2]


def test_a_mesh_that_is_lost_again_and_again_ends_in_an_error_that_names_the_host(
    hosts: list[LocalHost], caplog: pytest.LogCaptureFixture
) -> None:
    hosts[1].before_task = LocalHost.kill
    with pytest.raises(ProfilingError, match="host local-1: "):
        measured(hosts, scaled(2))
    assert hosts[0].supervisor is None
    assert hosts[1].supervisor is None
    assert "a mesh was lost while it measured: " in caplog.text


def test_a_host_that_cannot_be_started_is_named_after_all_attempts(
    hosts: list[LocalHost], caplog: pytest.LogCaptureFixture
) -> None:
    def start(setup: Setup) -> None:
        del setup
        raise HostLostError("no such node")

    hosts[1].start = start
    hosts[0].start = lambda setup: None
    with pytest.raises(ProfilingError, match=f"tried {ATTEMPTS} times: host local-1: no such node"):
        measured(hosts, scaled(2))
    warning = "the mesh to measure on cannot be made: host local-1: no such node"
    assert [record.getMessage() for record in caplog.records] == [warning] * ATTEMPTS


def test_a_host_that_ends_in_the_middle_of_its_task_is_named(hosts: list[LocalHost]) -> None:
    hosts[0].start = hosts[1].start = lambda setup: None
    hosts[0].do = lambda task: iter([TaskDone()])
    hosts[1].do = lambda task: iter(())
    with pytest.raises(ProfilingError, match=f"tried {ATTEMPTS + 1} times: host local-1: its process ended"):
        measured(hosts, scaled(2))


def test_a_supervisor_that_was_not_started_measures_nothing() -> None:
    with pytest.raises(ProfilingError, match="its process ended"):
        list(Supervisor(QUIET).do(MeasureTask((), 1, random.Random(0))))


def test_a_host_of_a_ray_cluster_that_is_silent_and_does_not_answer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")

    def get(reference: object, timeout: float) -> None:
        raise ray.exceptions.GetTimeoutError

    monkeypatch.setattr(ray, "wait", lambda references, **_: ([], references))
    monkeypatch.setattr(ray, "get", get)
    host = RayHost(SlotHost(Node("its node", "a host", "its address", "its machine"), None), 4, QUIET)
    host._actor = MagicMock()
    with pytest.raises(HostLostError, match="it has not answered for 10 s"):
        list(host.do(MeasureTask((), 1, random.Random(0))))


def test_a_run_takes_as_long_as_on_the_host_where_it_takes_longest() -> None:
    def profile(*samples_s: float) -> Profile:
        sizes = dict.fromkeys(("argument_bytes", "output_bytes", "aliased_bytes", "temporary_bytes"), 0)
        return Profile(status="measured", created_at=utc_now(), samples_s=samples_s, compile_s=0.1, **sizes)

    assert of_all_hosts([profile(1, 4), profile(2, 3)]).samples_s == (2, 4)
