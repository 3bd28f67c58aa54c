"""Who may compile and who may time on which machine: one timing at a time on each.

Takes the machines that somebody needs, and waits until all of them are free for that; what compiles on a machine shares
it with whatever else compiles there. Several nodes of a cluster, and several meshes of one node, may be on one machine,
which is known by its boot id. Invariants: machines are taken all at once, by who has waited longest, so nobody waits
for somebody who waits, and nobody is passed for ever; they are given back when the context ends, however it does.
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
_LOOK_EVERY_S = 0.5


class StoppedError(Exception):
    """Who waits for machines is to stop."""


def this_machine() -> str:
    """What this machine is known by."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return f"{uuid.getnode():x}"  # where there is no Linux


@dataclass(frozen=True, eq=False, slots=True)
class _Request:
    use: Use
    machines: frozenset[str]


class Machines:
    """The machines of a cluster, for all who measure there from this process.

    Args:
        times_alone: Whether nothing is compiled on a machine while something is timed there.
    """

    def __init__(self, *, times_alone: bool) -> None:
        self._times_alone = times_alone
        self._changed = threading.Condition()
        # In the order in which they came; those that have their machines stay until they give them back.
        self._requests: list[_Request] = []

    @contextlib.contextmanager
    def used(self, use: Use, machines: Collection[str], stop: threading.Event | None = None) -> Iterator[None]:
        """For the time of the context, have these machines for that.

        Raises:
            StoppedError: `stop` was set before they were free.
        """
        request = _Request(use, frozenset(machines))
        with self._changed:
            self._requests.append(request)
        try:
            with self._changed:
                while not self._is_first(request):
                    if stop is not None and stop.is_set():
                        raise StoppedError
                    self._changed.wait(_LOOK_EVERY_S)
            yield
        finally:
            with self._changed:
                self._requests.remove(request)
                self._changed.notify_all()

    def _is_first(self, request: _Request) -> bool:
        """Whether no earlier request is in the way: all earlier ones either have their machines or wait for them."""
        earlier = self._requests[: self._requests.index(request)]
        return not any(
            other.machines & request.machines and self._conflict(other.use, request.use) for other in earlier
        )

    def _conflict(self, one: Use, other: Use) -> bool:
        return one == other == "time" or (self._times_alone and "time" in (one, other))
