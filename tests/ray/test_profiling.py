"""Programs are measured on the hosts of a Ray cluster; what kills a host there costs a mesh, and no profile."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray

from alpa_cfp.alpa.ray_hosts import RayHost, measurer_of
from alpa_cfp.database import Profile, ProfileDatabase
from alpa_cfp.profiling import MeasureOptions, Profiler
from alpa_cfp.profiling.process.protocol import CompileTask, MeasureTask, Task, TaskEvent
from alpa_cfp.profiling.process.supervisor import Supervisor
from integration.processes import processes_of, wait_until
from unit.alpa_cfp.profiling.programs import crashing, product, scaled
from unit.alpa_cfp.spmd.helpers import MESH_2X4, split

OPTIONS = MeasureOptions(samples=2, progress=False, run_limit_s=20.0)
# Communicates between the hosts, each of which is a row of the mesh.
SUMMED = product(split(MESH_2X4, "", "x"), split(MESH_2X4, "x", ""))


# Called in the process of a supervisor; the id of the process that is killed.
Victim = Callable[[Supervisor], int]
_WORKER: Victim = lambda supervisor: supervisor._process.pid  # noqa: E731
_SUPERVISOR: Victim = lambda _: os.getpid()  # noqa: E731


def measured(mesh: Any, *modules: Any) -> list[Profile]:
    with Profiler(measurer_of(mesh, range(8), OPTIONS), ProfileDatabase.in_memory(), OPTIONS) as profiler:
        return profiler.measure(modules)


OF_PROFILING = ("Supervisor", "alpa_cfp.profiling")


@pytest.fixture
def actors(ray_folder: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The supervisors that are started, in their order; after the test none of them is left, nor what they started."""
    started = []
    start = RayHost.start

    def noted(self: RayHost, setup: Any) -> None:
        start(self, setup)
        started.append(self._actor)

    monkeypatch.setattr(RayHost, "start", noted)
    yield started
    wait_until(lambda: not any(name in text for text in processes_of(ray_folder).values() for name in OF_PROFILING))


def kill_once(monkeypatch: pytest.MonkeyPatch, victim: Victim, number: int, kind: type = MeasureTask) -> None:
    """When the first host begins with such a task, send a signal to what measures there, or to what watches that."""
    do, killed = RayHost.do, list[int]()

    def killing(self: RayHost, task: Task) -> Iterator[TaskEvent]:
        if isinstance(task, kind) and not killed:
            killed.append(ray.get(self._actor.__ray_call__.remote(victim)))
            os.kill(killed[0], number)
        return do(self, task)

    monkeypatch.setattr(RayHost, "do", killing)


def test_programs_are_measured_together_on_both_hosts(mesh: Any, actors: list[Any]) -> None:
    profiles = measured(mesh, SUMMED, scaled(2))
    assert [(profile.status, len(profile.samples_s)) for profile in profiles] == [("measured", 2)] * 2
    assert len(actors) == 2


@pytest.mark.parametrize(
    ("victim", "kind"),
    [(_WORKER, MeasureTask), (_WORKER, CompileTask), (_SUPERVISOR, MeasureTask)],
    ids=["worker_measures", "worker_compiles", "supervisor"],
)
def test_a_host_that_is_killed_costs_a_mesh_and_no_profile(
    mesh: Any, actors: list[Any], monkeypatch: pytest.MonkeyPatch, victim: Victim, kind: type
) -> None:
    kill_once(monkeypatch, victim, signal.SIGKILL, kind)
    profiles = measured(mesh, SUMMED, scaled(2))
    assert [profile.status for profile in profiles] == ["measured", "measured"]
    assert len(actors) == 4


def test_a_host_that_is_stopped_costs_a_mesh_and_no_profile(
    mesh: Any, actors: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_once(monkeypatch, _WORKER, signal.SIGSTOP)
    profiles = measured(mesh, SUMMED)
    assert [profile.status for profile in profiles] == ["measured"]
    assert len(actors) == 4


def test_a_program_that_crashes_its_process_is_recorded_as_failed_after_three_meshes(
    mesh: Any, actors: list[Any]
) -> None:
    crashed, sound = measured(mesh, crashing(), scaled(2))
    assert (crashed.status, crashed.failure) == ("failed", "crashed")
    assert sound.status == "measured"
    assert len(actors) >= 6
