"""Locks of machines for compiling and timing: one timing at a time on each.

A context takes all machines that it needs at once, and waits until they are free for its use; compilations share a
machine. Several nodes of a cluster, and several meshes of one node, may be on one machine, which is identified by its
boot id. Invariants: requests are served in order, all machines of a request at once, so there is neither deadlock nor
starvation; machines are released when the context ends, however it does.
"""

import contextlib
import threading
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Use = Literal["compile", "time"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CHECK_S = 0.5


class StoppedError(Exception):
    """The waiting thread is to stop."""


def this_machine() -> str:
    """The identity of this machine."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return f"{uuid.getnode():x}"  # not on Linux


@dataclass(frozen=True, eq=False, slots=True)
class _Request:
    use: Use
    machines: frozenset[str]


class Machines:
    """The machines of a cluster, for all threads of this process that measure there.

    Args:
        times_alone: Whether nothing is compiled on a machine while something is timed there.
    """

    def __init__(self, *, times_alone: bool) -> None:
        self._times_alone = times_alone
        self._changed = threading.Condition()
        # In the order of arrival; a request that is served stays until its machines are released.
        self._requests: list[_Request] = []

    @contextlib.contextmanager
    def reserved(self, use: Use, machines: Collection[str], stop: threading.Event | None = None) -> Iterator[None]:
        """Reserve machines for a use while the context lasts.

        Raises:
            StoppedError: `stop` was set before they were free.
        """
        request = _Request(use, frozenset(machines))
        with self._changed:
            self._requests.append(request)
        try:
            with self._changed:
                while not self._is_served(request):
                    if stop is not None and stop.is_set():
                        raise StoppedError
                    self._changed.wait(_CHECK_S)
            yield
        finally:
            with self._changed:
                self._requests.remove(request)
                self._changed.notify_all()

    def _is_served(self, request: _Request) -> bool:
        """Whether no earlier request conflicts, whether that has its machines or waits for them."""
        earlier = self._requests[: self._requests.index(request)]
        return not any(
            other.machines & request.machines and self._conflict(other.use, request.use) for other in earlier
        )

    def _conflict(self, one: Use, other: Use) -> bool:
        return one == other == "time" or (self._times_alone and "time" in (one, other))
