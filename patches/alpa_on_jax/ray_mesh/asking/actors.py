"""An object in a thread of its own, which is asked as a Ray actor is: `actor.method.remote(...)` gives a reference.

Invariant: what an actor is asked for is done in that order, but for the methods that may be called at any time, which
answer at once, whatever else it does. When Python ends, the threads have come to the end of their work: one that came
back from compiling or computing after that would abort the process.
"""

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

_EXIT_S = 60.0  # Within this the threads have ended when Python ends, or are not waited for.


class Reference:
    """Stands for what an actor will answer.

    Attributes:
        actor: Who.
    """

    __slots__ = ("_future", "actor")

    def __init__(self, actor: "Actor", future: futures.Future[Any]):
        self.actor, self._future = actor, future


class Actor:
    """A thread with an object.

    Args:
        make: Makes the object, in the thread; what it raises is raised here.
        at_any_time: The methods that need not wait for others.
        name: Of the thread.
    """

    def __init__(self, make: Callable[[], Any], at_any_time: Sequence[str], name: str):
        self._asked: queue.SimpleQueue[tuple[futures.Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._at_any_time = frozenset(at_any_time)
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)
        self._thread.start()
        _actors.add(self)
        self._object: Any = None
        made = futures.Future[Any]()
        self._asked.put((made, make))
        self._object = made.result()

    def __getattr__(self, name: str) -> "_Method":
        if name.startswith("_"):
            raise AttributeError(name)
        return _Method(self, name)

    def _ask(self, name: str, args: Sequence[Any], options: dict[str, Any]) -> Reference:
        future = futures.Future[Any]()

        def call() -> Any:
            return getattr(self._object, name)(*args, **options)

        if self._has_ended:
            future.set_exception(ConnectionError("the host has ended"))
        elif name in self._at_any_time:
            _answer(future, call)
        else:
            self._asked.put((future, call))
        return Reference(self, future)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            _answer(*asked)

    def _end(self) -> None:
        """Take no more; what it was asked for before is still done."""
        self._has_ended = True
        self._asked.put(None)


_actors: weakref.WeakSet[Actor] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    actors = list(_actors)
    for actor in actors:
        actor._end()
    until = time.monotonic() + _EXIT_S
    for actor in actors:
        actor._thread.join(max(0.0, until - time.monotonic()))


class _Method:
    def __init__(self, actor: Actor, name: str):
        self._actor, self._name = actor, name

    def remote(self, *args: Any, **options: Any) -> Reference:
        """Ask the actor to call it."""
        return self._actor._ask(self._name, args, options)


def _answer(future: futures.Future[Any], call: Callable[[], Any]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001  it is told to whoever waits
        future.set_exception(error)


def end(actor: Actor) -> None:
    """Let an actor's thread end when it has done what it was asked for."""
    actor._end()


def get(references: Reference | Sequence[Reference], timeout: float | None = None) -> Any:
    """What one reference stands for, or a list of what several do.

    Raises:
        TimeoutError: not all is there in `timeout` seconds.
        Exception: what the first that failed has raised.
    """
    if isinstance(references, Reference):
        return references._future.result(timeout)
    waiting = [reference._future for reference in references]
    done, left = futures.wait(waiting, timeout, return_when=futures.FIRST_EXCEPTION)
    for future in waiting:
        if future in done and (error := future.exception()) is not None:
            raise error
    if left:
        raise TimeoutError
    return [future.result() for future in waiting]


def wait(references: Sequence[Reference], num_returns: int, timeout: float) -> tuple[list[Reference], list[Reference]]:
    """Those that are there, once there are `num_returns` or time is up, and the others."""
    waiting = {reference._future for reference in references}
    when = futures.FIRST_COMPLETED if num_returns == 1 else futures.ALL_COMPLETED
    done, _ = futures.wait(waiting, timeout, return_when=when)
    there = [reference for reference in references if reference._future in done]
    return there, [reference for reference in references if reference._future not in done]
