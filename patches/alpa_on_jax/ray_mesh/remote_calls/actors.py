"""An object in a thread of its own, with the interface of a Ray actor: `actor.method.remote(...)` gives a reference.

Invariant: calls are executed in order, except for the methods in `at_any_time`, which are executed at once in the
caller's thread. The threads are joined before Python exits: one that returned from compiling or computing afterwards
would abort the process.
"""

import atexit
import functools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent import futures
from types import SimpleNamespace
from typing import Any

_EXIT_S = 60.0  # The time limit for joining the threads when Python exits.


class Reference:
    """A future result of a remote call.

    Attributes:
        actor: The actor that computes it.
    """

    __slots__ = ("_future", "actor")

    def __init__(self, actor: "Actor", future: futures.Future[Any]):
        self.actor, self._future = actor, future


class Actor:
    """An object in a thread.

    Args:
        make: Makes the object, in the thread; its exceptions are raised here.
        at_any_time: The methods that do not wait for earlier calls.
        name: The name of the thread.
    """

    def __init__(self, make: Callable[[], Any], at_any_time: Sequence[str], name: str):
        self._calls: queue.SimpleQueue[tuple[futures.Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._at_any_time = frozenset(at_any_time)
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)
        self._thread.start()
        _actors.add(self)
        self._object: Any = None
        made = futures.Future[Any]()
        self._calls.put((made, make))
        self._object = made.result()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return SimpleNamespace(remote=functools.partial(self._call, name))

    def _call(self, name: str, /, *args: Any, **options: Any) -> Reference:
        future = futures.Future[Any]()

        def call() -> Any:
            return getattr(self._object, name)(*args, **options)

        if self._has_ended:
            future.set_exception(ConnectionError("the host has ended"))
        elif name in self._at_any_time:
            _execute(future, call)
        else:
            self._calls.put((future, call))
        return Reference(self, future)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            _execute(*item)

    def _end(self) -> None:
        """Accept no further calls; earlier ones are still executed."""
        self._has_ended = True
        self._calls.put(None)


_actors: weakref.WeakSet[Actor] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    actors = list(_actors)
    for actor in actors:
        actor._end()
    until = time.monotonic() + _EXIT_S
    for actor in actors:
        actor._thread.join(max(0.0, until - time.monotonic()))


def _execute(future: futures.Future[Any], call: Callable[[], Any]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001  `get` raises it
        future.set_exception(error)


def end(actor: Actor) -> None:
    """End an actor's thread after the calls made so far."""
    actor._end()


def get(references: Reference | Sequence[Reference], timeout: float | None = None) -> Any:
    """The result of one reference, or the list of results of several.

    Raises:
        TimeoutError: a result is not available within `timeout` seconds.
        Exception: the exception of the first call that failed.
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
    """The references with a result, once there are `num_returns` or the time is over, and the others."""
    waiting = {reference._future for reference in references}
    when = futures.FIRST_COMPLETED if num_returns == 1 else futures.ALL_COMPLETED
    done, _ = futures.wait(waiting, timeout, return_when=when)
    there = [reference for reference in references if reference._future in done]
    return there, [reference for reference in references if reference._future not in done]
