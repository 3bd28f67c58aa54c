"""What becomes of tasks and workers when workers die, hang or do not start; the workers are nothing but answers."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.processes.worker_pool import NoAnswer, WorkerPool
from alpa_on_jax.ray_mesh.remote_calls import references
from alpa_on_jax.ray_mesh.remote_calls.actors import Actor, Reference

LOST = ActorDiedError()
GONE = NoAnswer(errors.ClusterError.WORKER_GONE)
_ANYONE: Any = object.__new__(Actor)


def answered(value: Any) -> Reference:
    """A reference to a value, or to an error; to nothing that ever comes, for None."""
    future: Future[Any] = Future()
    if isinstance(value, Exception):
        future.set_exception(value)
    elif value is not None:
        future.set_result(value)
    return Reference(_ANYONE, future)


class Worker:
    """Says that it has started, or does not."""

    def __init__(self, started: Any = True) -> None:
        self.__ray_ready__ = self
        self._started = started

    def remote(self) -> Reference:
        return answered(self._started)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    """The workers that were killed."""
    killed: list[Worker] = []
    monkeypatch.setattr(references, "kill", killed.append)
    return killed


def pool(*starts: Callable[[], Any], task_limit_s: float = 30.0) -> WorkerPool:
    made = WorkerPool("worker", 2, 30.0, task_limit_s)
    for start in starts:
        made.add(start)
    return made


def tasks(*answers: Any) -> list[Callable[[Any], Reference]]:
    """Tasks, of which each gives these answers one after another."""
    left = [list(each) if isinstance(each, list) else [each] for each in answers]
    return [lambda _, mine=mine: answered(mine.pop(0)) for mine in left]


def test_each_task_is_answered_once(killed: list[Worker]) -> None:
    assert sorted(pool(Worker, Worker).do(tasks("a", "b", "c"))) == [(0, "a"), (1, "b"), (2, "c")]
    assert not killed


def test_what_a_worker_was_at_that_died_is_done_by_another(killed: list[Worker]) -> None:
    started = []

    def start() -> Worker:
        started.append(Worker())
        return started[-1]

    assert sorted(pool(start).do(tasks([LOST, "a"], "b"))) == [(0, "a"), (1, "b")]
    assert len(started) == 2
    assert killed == started[:1]


def test_a_task_that_takes_two_workers_along_has_no_answer_and_the_others_have(killed: list[Worker]) -> None:
    lost_mesh = errors.MeshLostError.of(["10.0.0.2"], "its process has ended")
    found = dict(pool(Worker).do(tasks([LOST, LOST], [lost_mesh, "b"], "c")))
    assert found == {0: GONE, 1: "b", 2: "c"}
    assert len(killed) == 3


def test_a_worker_that_says_what_went_wrong_goes_on(killed: list[Worker]) -> None:
    found = dict(pool(Worker).do(tasks(ValueError("no.\nmore"), "b")))
    assert found == {0: NoAnswer("no"), 1: "b"}
    assert not killed


def test_a_worker_that_is_at_a_task_for_too_long_is_killed(killed: list[Worker]) -> None:
    found = dict(pool(Worker, task_limit_s=0.01).do(tasks([None, None], "b")))
    assert found == {0: NoAnswer("it has taken longer than 0.01 s"), 1: "b"}
    assert len(killed) == 2


def test_a_worker_that_does_not_start_twice_is_done_without(killed: list[Worker]) -> None:
    made = pool(lambda: Worker(LOST), Worker)
    assert sorted(made.do(tasks("a", "b"))) == [(0, "a"), (1, "b")]
    made.end()
    assert len(killed) == 3


def test_where_no_worker_starts_each_task_hears_why(killed: list[Worker]) -> None:
    found = dict(pool(lambda: Worker(LOST)).do(tasks("a", "b")))
    reason = NoAnswer(f"no worker could be started: {errors.ClusterError.WORKER_GONE}")
    assert found == {0: reason, 1: reason}
    assert len(killed) == 2


def test_workers_that_have_nothing_to_do_are_asked_before_they_end(killed: list[Worker]) -> None:
    made, asked = pool(Worker), []
    list(made.do(tasks("a", "b")))

    def finish(worker: Worker) -> Reference:
        asked.append(worker)
        return answered("finished")

    made.end(finish, 1.0)
    assert len(made) == 0
    assert len(asked) == 1
    assert asked == killed
