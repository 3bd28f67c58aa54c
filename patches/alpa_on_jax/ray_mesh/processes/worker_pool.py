"""Ray actors that do tasks one after another, and are started anew when they are lost.

Takes how to start each worker, and tasks; gives the answer of each task as it comes, or why there is none. What a
worker was at that dies, hangs or loses its mesh is given to another one. A worker that cannot be started is
tried once more, and then done without.

Invariant: each task is answered exactly once, and in a limited time, whatever becomes of the workers. After `end` no
worker of the pool is left.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.remote_calls import references

log = logging.getLogger("alpa_on_jax")

_MOST_FAILED_STARTS = 2
# What Ray says of an actor whose object could not be made.
_IN_START = "creation task"


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """In the place of the answer of a task that has none.

    Attributes:
        reason: Why.
    """

    reason: str


class WorkerPool:
    """Workers, which are started when they are added.

    Args:
        kind: What they are, for who reads the log.
        tries: How often a task is given to a worker, if workers are lost at it.
        start_limit_s: Until a worker that is started answers.
        task_limit_s: For one task.
    """

    def __init__(self, kind: str, tries: int, start_limit_s: float, task_limit_s: float) -> None:
        self._kind, self._tries = kind, tries
        self._start_limit_s, self._task_limit_s = start_limit_s, task_limit_s
        self._places: list[_Place] = []
        self._no_start = "there is no worker"

    def __len__(self) -> int:
        return len(self._places)

    def add(self, start: Callable[[], Any]) -> None:
        """One more worker; `start()` starts an actor and gives its handle, at once and again if it is lost."""
        self._places.append(_Place(start))
        self._start(self._places[-1])

    def do(self, tasks: Sequence[Callable[[Any], Any]]) -> Iterator[tuple[int, Any]]:
        """The number of each task and its answer, or a `NoAnswer`, as they come.

        Args:
            tasks: Each gives, for a worker, the reference to the worker's answer.
        """
        waiting = deque((number, 1) for number in range(len(tasks)))
        unanswered = len(tasks)
        while unanswered:
            for place in self._places:
                if waiting and place.reference is None:
                    place.task = waiting.popleft()
                    place.wait_for(tasks[place.task[0]](place.worker), self._task_limit_s)
            busy = [place for place in self._places if place.reference is not None]
            if not busy:
                yield from ((number, NoAnswer(self._no_start)) for number, _ in waiting)
                return
            place = _first_of(busy)
            task, answer, is_lost = place.task, *place.take_answer()
            if task is None:
                self._started(place, answer)
                continue
            if is_lost:
                self._start(place)
            if is_lost and task[1] < self._tries:
                log.warning("a %s was lost: %s. What it was at is done again", self._kind, answer.reason)
                waiting.appendleft((task[0], task[1] + 1))
            else:
                unanswered -= 1
                yield task[0], answer

    def end(self, finish: Callable[[Any], Any] | None = None, limit_s: float = 0.0) -> None:
        """End all workers, whatever they do.

        Args:
            finish: Asks a worker that has nothing to do for what it should do before.
            limit_s: How long that may take.
        """
        idle = [place.worker for place in self._places if place.reference is None]
        if finish is not None and idle:
            references.wait([finish(worker) for worker in idle], num_returns=len(idle), timeout=limit_s)
        for place in self._places:
            if place.worker is not None:
                references.kill(place.worker)
        self._places.clear()

    def _start(self, place: "_Place") -> None:
        if place.worker is not None:
            references.kill(place.worker)
        place.worker = place.start()
        place.wait_for(place.worker.__ray_ready__.remote(), self._start_limit_s)

    def _started(self, place: "_Place", answer: Any) -> None:
        if not isinstance(answer, NoAnswer):
            place.failed_starts = 0
            return
        place.failed_starts += 1
        if place.failed_starts < _MOST_FAILED_STARTS:
            self._start(place)
            return
        references.kill(place.worker)
        self._places.remove(place)
        self._no_start = f"no {self._kind} could be started: {answer.reason}"
        log.warning("a %s could not be started: %s. %d others go on", self._kind, answer.reason, len(self._places))


@dataclass(eq=False, slots=True)
class _Place:
    """A slot of the pool, in which a worker is started, and started anew.

    Attributes:
        start: Starts one.
        worker: The one that is there.
        reference: What is waited for: that it has started, or its answer; None if it has nothing to do.
        task: The number of what it is at, and the how manieth try that is; None while it starts.
        end: When it has taken too long.
        limit_s: How long it may take.
        failed_starts: How many came to nothing, one after another.
    """

    start: Callable[[], Any]
    worker: Any = None
    reference: Any = None
    task: tuple[int, int] | None = None
    end: float = 0.0
    limit_s: float = 0.0
    failed_starts: int = 0

    def wait_for(self, reference: Any, limit_s: float) -> None:
        self.reference, self.limit_s, self.end = reference, limit_s, time.monotonic() + limit_s

    def take_answer(self) -> tuple[Any, bool]:
        """The answer that was waited for, and whether the worker is lost; the worker is idle afterwards."""
        reference, self.reference, self.task = self.reference, None, None
        try:
            return references.get(reference, timeout=0), False
        except Exception as error:  # noqa: BLE001  whatever it was, the task has no answer
            if references.is_timeout(error):
                return NoAnswer(f"it has taken longer than {self.limit_s:g} s"), True
            cause = getattr(error, "cause", None) or error
            is_lost = references.is_gone(error) or isinstance(cause, errors.MeshLostError)
            return NoAnswer(_reason(cause)), is_lost


def _first_of(places: Sequence[_Place]) -> _Place:
    """The first that has an answer, or that has taken too long."""
    first_end = min(place.end for place in places)
    ready, _ = references.wait(
        [place.reference for place in places], num_returns=1, timeout=max(first_end - time.monotonic(), 0)
    )
    if ready:
        return next(place for place in places if place.reference == ready[0])
    return min(places, key=lambda place: place.end)


def _reason(error: BaseException) -> str:
    """The message of an error, in one line."""
    said = str(error).strip()
    if _IN_START in said:
        # After a traceback.
        return said.rpartition("\n")[2].strip().rstrip(".")
    if isinstance(error, Exception) and references.is_gone(error):
        return errors.ClusterError.WORKER_GONE
    return said.partition("\n")[0].rstrip(".") or type(error).__name__
