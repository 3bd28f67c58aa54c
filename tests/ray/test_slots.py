"""Programs are measured on several equal submeshes of a Ray cluster at once, of which each holds its devices."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import alpa
import pytest
import ray
from alpa.device_mesh import get_global_cluster

from alpa_cfp.alpa import ray_hosts as hosts_of_ray
from alpa_cfp.alpa.ray_hosts import RayHost, measurer_of
from alpa_cfp.alpa.ray_slots import _parts, slots_of
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.profiling import MeasureOptions, Profiler
from alpa_cfp.profiling.process.protocol import MeasureTask, Task, TaskEvent
from alpa_cfp.profiling.process.supervisor import Supervisor
from unit.alpa_cfp.profiling.programs import scaled

OPTIONS = MeasureOptions(samples=2, group=2, slots=2, progress=False, run_limit_s=20.0)
_LIMIT_S = 30.0


@pytest.fixture(scope="module")
def submesh(cluster: Any) -> Iterator[Any]:
    """Alpa on the cluster, of which a mesh has one host."""
    alpa.init(cluster="ray")
    made = get_global_cluster().get_physical_mesh([0], 4)
    yield made
    made.shutdown()
    alpa.shutdown()


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[RayHost, Task]]:
    """What each host is given."""
    given, do = [], RayHost.do

    def noted(self: RayHost, task: Task) -> Iterator[TaskEvent]:
        given.append((self, task))
        return do(self, task)

    monkeypatch.setattr(RayHost, "do", noted)
    return given


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def wait_until_free(number: int) -> None:
    wait_until(lambda: sum(part.free for part in _parts().values()) == number)


def timed(done: list[tuple[RayHost, Task]]) -> dict[str, int]:
    """How many programs were timed on each node."""
    count: dict[str, int] = {}
    for host, task in done:
        if isinstance(task, MeasureTask):
            count[host.name] = count.get(host.name, 0) + len(task.modules)
    return count


def test_the_other_node_is_a_slot_and_its_devices_are_held_as_long_as_it_is_used(submesh: Any, done: Any) -> None:
    wait_until_free(4)
    modules = [scaled(factor, mesh=(1, 4)) for factor in range(2, 8)]
    with Profiler(measurer_of(submesh, range(4), OPTIONS), ProfileDatabase.in_memory(), OPTIONS) as profiler:
        profiles = profiler.measure(modules)
        assert profiler.devices.hosts == "4"
        wait_until_free(0)
    assert [(profile.status, len(profile.samples_s)) for profile in profiles] == [("measured", 2)] * 6
    assert timed(done).keys() == set(get_global_cluster().host_ips)
    assert sum(timed(done).values()) == 6
    wait_until_free(4)


@pytest.mark.parametrize(
    "victim", [lambda supervisor: supervisor._process.pid, lambda _: os.getpid()], ids=["worker", "supervisor"]
)
def test_a_slot_whose_host_is_killed_loses_nothing(
    submesh: Any, done: Any, monkeypatch: pytest.MonkeyPatch, victim: Callable[[Supervisor], int]
) -> None:
    wait_until_free(4)
    do, killed = RayHost.do, list[int]()

    def killing(self: RayHost, task: Task) -> Iterator[TaskEvent]:
        if isinstance(task, MeasureTask) and self._bundle is not None and not killed:
            killed.append(ray.get(self._actor.__ray_call__.remote(victim)))
            os.kill(killed[0], signal.SIGKILL)
        return do(self, task)

    monkeypatch.setattr(RayHost, "do", killing)
    database = ProfileDatabase.in_memory()
    with Profiler(measurer_of(submesh, range(4), OPTIONS), database, OPTIONS) as profiler:
        profiles = profiler.measure([scaled(factor, mesh=(1, 4)) for factor in range(2, 8)])
    assert len(killed) == 1
    assert [profile.status for profile in profiles] == ["measured"] * 6
    assert [len(database.sessions(key)) for key in database.keys()] == [1] * 6  # noqa: SIM118
    wait_until_free(4)


def test_a_slot_whose_devices_somebody_takes_first_is_not_used(
    submesh: Any, done: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wait_until_free(4)
    monkeypatch.setattr(hosts_of_ray, "_HOLD_S", 1.0)
    measurer = measurer_of(submesh, range(4), OPTIONS)
    other = get_global_cluster().get_physical_mesh([1], 4)
    try:
        with Profiler(measurer, ProfileDatabase.in_memory(), OPTIONS) as profiler:
            profiles = profiler.measure([scaled(factor, mesh=(1, 4)) for factor in range(2, 8)])
    finally:
        other.shutdown()
    assert [profile.status for profile in profiles] == ["measured"] * 6
    assert timed(done) == {submesh.host_ips[0]: 6}
    assert "its devices were not to be had: it has not answered for 1 s" in caplog.text
    wait_until_free(4)


def test_the_rest_of_a_node_is_a_slot_for_a_mesh_that_is_smaller(submesh: Any, done: Any) -> None:
    mesh = get_global_cluster().get_physical_mesh([1], 2)
    try:
        wait_until_free(2)
        slots, kinds = slots_of(mesh, 8, _LIMIT_S)
        assert [[host.bundle for host in slot.hosts] for slot in slots] == [[None], [1]]
        assert len({host.node for slot in slots for host in slot.hosts}) == 1
        assert kinds == ("cpu", "cpu")
        with Profiler(measurer_of(mesh, range(2), OPTIONS), ProfileDatabase.in_memory(), OPTIONS) as profiler:
            profiles = profiler.measure([scaled(factor, mesh=(1, 2)) for factor in range(2, 6)])
        assert [profile.status for profile in profiles] == ["measured"] * 4
        assert len({host for host, _ in done}) == 2
        wait_until_free(2)
    finally:
        mesh.shutdown()
