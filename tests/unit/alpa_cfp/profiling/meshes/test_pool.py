"""Programs are measured on several slots at once; whatever dies, each has one profile, and machines are not shared."""

import contextlib
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling.meshes import hosts
from alpa_cfp.profiling.meshes.pool import Pool
from alpa_cfp.profiling.process.protocol import CompileTask, Finished, MeasureTask, Task
from alpa_cfp.profiling.queue import ProfilingQueue
from unit.alpa_cfp.profiling.meshes.fake_hosts import FATES, Cluster, FakeHost, Fate, Module, tasks_of

_DEADLINE_S = 30.0
MACHINES = st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=2), min_size=1, max_size=3)


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that compute nothing know at once what they know."""
    monkeypatch.setattr(hosts, "_GRACE_S", 0.05)


def work_of(number: int, size: int, *, together: bool = False) -> ProfilingQueue:
    modules: Any = {f"key {index}": Module(f"module {index}") for index in range(number)}
    return ProfilingQueue(modules, 1, size, random.Random(0), together=together)


def all_of(pool: Pool, work: ProfilingQueue) -> list[tuple[Any, Finished]]:
    """The name of each program that is finished, with what is said of it."""
    pool.start()
    with contextlib.closing(pool.measure(work)) as events:
        named = [(work.finish(group, finished), finished) for group, finished in events]
    return [(key, finished) for key, finished in named if key is not None]


def in_time(call: Callable[[], Any]) -> Any:
    """What a call gives, unless it hangs."""
    given: list[Any] = []
    thread = threading.Thread(target=lambda: given.append(call()), daemon=True)
    thread.start()
    thread.join(_DEADLINE_S)
    assert not thread.is_alive(), "it hangs"
    return given[0]


@settings(deadline=None, max_examples=60)
@given(MACHINES, st.integers(1, 12), st.integers(1, 5), st.lists(st.sampled_from(FATES), max_size=20), st.booleans())
def test_each_program_has_one_profile_whatever_dies_and_no_machine_times_twice_at_once(
    machines: Sequence[Sequence[str]], number: int, size: int, fates: Sequence[Any], times_alone: bool
) -> None:
    cluster = Cluster(deque(fates), times_alone)
    pool = Pool([cluster.slot(*each) for each in machines])

    def measured() -> list[str] | None:
        try:
            return [key for key, _ in all_of(pool, work_of(number, size))]
        except ProfilingError:
            return None  # no slot is left

    found = in_time(measured)
    pool.close()
    if found is not None:
        assert Counter(found) == Counter(f"key {index}" for index in range(number))
    assert cluster.complaints == []
    assert cluster.active == {}


def meeting(kind: type) -> Callable[[FakeHost, Task], None]:
    """In the middle of a task of this kind, each of two hosts waits until the other one is there, too."""
    both = threading.Barrier(2)

    def meet(_: FakeHost, task: Task) -> None:
        if isinstance(task, kind):
            both.wait(_DEADLINE_S)

    return meet


def test_slots_on_different_machines_time_at_once() -> None:
    cluster = Cluster(meanwhile=meeting(MeasureTask))
    found = in_time(lambda: all_of(Pool([cluster.slot("a"), cluster.slot("b")]), work_of(4, 2)))
    assert len(found) == 4
    assert {machine for machine, _ in tasks_of(cluster, MeasureTask)} == {"a", "b"}


def test_slots_on_one_machine_compile_at_once() -> None:
    cluster = Cluster(meanwhile=meeting(CompileTask))
    assert len(in_time(lambda: all_of(Pool([cluster.slot("a"), cluster.slot("a")]), work_of(4, 2)))) == 4
    assert cluster.complaints == []


def test_one_group_needs_one_slot() -> None:
    cluster = Cluster()
    all_of(Pool([cluster.slot("a"), cluster.slot("b")]), work_of(3, 3))
    assert [(machine, len(task.modules)) for machine, task in tasks_of(cluster, MeasureTask)] == [("a", 3)]


@pytest.mark.parametrize("together", [False, True])
def test_what_is_to_be_told_apart_is_not_divided_among_slots_that_are_there(together: bool) -> None:
    cluster = Cluster()
    pool = Pool([cluster.slot("a"), cluster.slot("b")])
    all_of(pool, work_of(4, 2))  # both are made
    cluster.tasks.clear()
    all_of(pool, work_of(3, 2, together=together))
    assert sorted(len(task.modules) for _, task in tasks_of(cluster, MeasureTask)) == ([3] if together else [1, 2])


def test_what_is_loaded_on_a_slot_is_measured_again_there() -> None:
    cluster = Cluster()
    pool = Pool([cluster.slot("a"), cluster.slot("b")])
    all_of(pool, work_of(4, 2))
    before = {task.modules: machine for machine, task in tasks_of(cluster, MeasureTask)}
    for _ in range(2):
        cluster.tasks.clear()
        all_of(pool, work_of(4, 2))
        assert {task.modules: machine for machine, task in tasks_of(cluster, MeasureTask)} == before


def test_a_slot_that_cannot_be_made_is_not_used_and_the_others_are(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(deque(["no start"] * 3))
    found = all_of(Pool([cluster.slot("a"), cluster.slot("b")]), work_of(4, 2))
    assert len(found) == 4
    assert {machine for machine, _ in cluster.tasks} == {"b"}
    assert "profiling goes on with 1 of 2 meshes: no mesh of these hosts can be measured on" in caplog.text


def test_where_no_slot_is_left_it_is_an_error_and_the_next_call_tries_all_again() -> None:
    cluster = Cluster(deque(["no start"] * 6))
    pool = Pool([cluster.slot("a"), cluster.slot("b")])
    with pytest.raises(ProfilingError, match="host on-b: it does not start"):
        pool.start()
    assert len(all_of(pool, work_of(4, 2))) == 4


def test_what_was_killed_three_times_from_outside_has_not_failed_for_good() -> None:
    def outcome(fate: Any) -> Finished:
        # A start of the mesh, its compilation, and its end in the middle of the run.
        cluster = Cluster(deque(["sound", "sound", fate] * 3))
        ((_, finished),) = all_of(Pool([cluster.slot("a")]), work_of(1, 1))
        return finished

    killed, crashed = outcome("killed"), outcome("crashed")
    assert (killed.profile.failure, killed.is_permanent) == ("crashed", False)
    assert (crashed.profile.failure, crashed.is_permanent) == ("crashed", True)


def test_a_program_at_which_two_slots_are_lost_counts_for_both() -> None:
    def crash(_: FakeHost, task: Task) -> Fate | None:
        return "crashed" if isinstance(task, MeasureTask) and task.modules == (b"module 3",) else None

    cluster = Cluster(meanwhile=crash)
    found = dict(all_of(Pool([cluster.slot("a"), cluster.slot("b")]), work_of(4, 1)))
    assert found["key 3"].profile.failure == "crashed"
    assert sum(task.modules == (b"module 3",) for _, task in tasks_of(cluster, MeasureTask)) == 3


def test_a_program_that_one_host_cannot_compile_is_finished_once_whatever_another_host_does_with_it() -> None:
    # The starts of two hosts, and what each makes of the program.
    cluster = Cluster(deque(["sound", "sound", "uncompilable", "crashed"]))
    ((_, finished),) = all_of(Pool([cluster.slot("a", "b")]), work_of(1, 1))
    assert finished.profile.status == "failed"


def test_programs_during_whose_compilation_a_mesh_was_lost_are_compiled_alone() -> None:
    cluster = Cluster(deque(["sound", "suspected"]))
    assert len(all_of(Pool([cluster.slot("a")]), work_of(3, 3))) == 3
    assert [task.alone for _, task in tasks_of(cluster, CompileTask)] == [(), (0, 1, 2)]


@pytest.mark.parametrize("kind", [CompileTask, MeasureTask])
def test_a_call_that_is_broken_off_ends_the_meshes_that_are_busy_and_its_threads(kind: type) -> None:
    busy = threading.Event()

    def hang(host: FakeHost, task: Task) -> None:
        if isinstance(task, kind) and host.machine == "b":
            busy.set()
            while host.is_up:
                threading.Event().wait(0.01)

    cluster = Cluster(meanwhile=hang)
    pool, work = Pool([cluster.slot("a"), cluster.slot("b"), cluster.slot("b")]), work_of(9, 1)
    pool.start()
    before = threading.active_count()

    def broken_off() -> Iterator[None]:
        with contextlib.closing(pool.measure(work)) as events:
            for group, finished in events:
                work.finish(group, finished)
                if busy.wait(_DEADLINE_S):
                    yield

    for _ in broken_off():
        break
    pool.close()
    assert threading.active_count() <= before
    assert cluster.active == {}
    cluster.meanwhile = lambda *_: None
    assert len(all_of(pool, work_of(9, 1))) == 9
