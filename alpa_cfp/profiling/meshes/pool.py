"""Measure on several meshes at once: the slots, of which each measures one group after the other.

Takes slots, and what is to be measured; gives each finished profile as it comes, from whichever slot. Each group under
way has a thread, which only waits for the hosts; all else is done by the thread that asks. A slot that cannot be made,
or is lost again and again, is not used any more, and what is left of its group goes to the others. Invariants: it is an
error only if no slot is left; a call that ends early leaves no thread that still makes something; after `close` nothing
is left of any slot.
"""

import logging
import queue
import random
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from alpa_cfp.database import ProfileKey
from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling.meshes.machines import StoppedError
from alpa_cfp.profiling.process.events import Finished
from alpa_cfp.profiling.queue import Group, ProfilingQueue
from alpa_cfp.spmd.errors import SpmdError
from alpa_cfp.spmd.module.hlo_module import HloModule

logger = logging.getLogger(__name__)

# A call that a slot is in ends soon after its hosts have, or is left to itself.
_STOP_LIMIT_S = 60.0
_STOP_AGAIN_S = 0.5


class Slot(Protocol):
    """One mesh to measure on (`hosts.HostsWorker`); it is made when it is needed."""

    @property
    def is_started(self) -> bool:
        """Whether it is made."""
        ...

    def start(self, stop: threading.Event) -> None:
        """Make it.

        Raises:
            ProfilingError, SpmdError: that is not possible.
            StoppedError: `stop` was set.
        """
        ...

    def measure(
        self, modules: Sequence[HloModule], drawn: random.Random, samples: int, stop: threading.Event
    ) -> Generator[Finished]:
        """Measure a group; called in another thread than `close`.

        Raises:
            ProfilingError, SpmdError: it cannot be made, or is lost again and again.
            StoppedError: `stop` was set.
        """
        ...

    def close(self) -> None:
        """End it, and with it what it is doing; can be called again."""
        ...


@dataclass(frozen=True, slots=True)
class _UnderWay:
    group: Group
    thread: threading.Thread


class Pool:
    """Measures groups of programs on several slots.

    Args:
        slots: The first one is made first; the others when there is more to measure than one group.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = tuple(slots)
        self._left = list(range(len(slots)))
        # What is still loaded there.
        self._loaded: dict[int, frozenset[ProfileKey]] = {}

    @property
    def pid(self) -> None:
        """None: there are processes on each host."""
        return None

    def start(self) -> None:
        """Make a slot, if there is none.

        Raises:
            ProfilingError, SpmdError: none can be made; that of the last one.
        """
        self._left = self._left or list(range(len(self._slots)))
        while not any(self._slots[number].is_started for number in self._left):
            number = self._left[0]
            try:
                self._slots[number].start(threading.Event())
            except (ProfilingError, SpmdError) as error:
                self._do_without(number, error)

    def measure(self, work: ProfilingQueue) -> Generator[tuple[Group, Finished]]:
        """Measure all groups.

        Raises:
            ProfilingError, SpmdError: no slot is left; that of the last one.
        """
        arrived: queue.SimpleQueue[tuple[int, Finished | Exception | None]] = queue.SimpleQueue()
        stop, under_way = threading.Event(), dict[int, _UnderWay]()
        try:
            while True:
                self._give(work, under_way, arrived, stop)
                if not under_way:
                    return
                number, event = arrived.get()
                if isinstance(event, Finished):
                    yield under_way[number].group, event
                    continue
                group = under_way.pop(number).group
                work.end(group)
                self._loaded[number] = frozenset(group.keys)
                if isinstance(event, ProfilingError | SpmdError):
                    self._do_without(number, event)
                elif event is not None:
                    raise event
        finally:
            self._stop(under_way, stop)

    def close(self) -> None:
        """End all slots."""
        threads = [threading.Thread(target=slot.close, daemon=True) for slot in self._slots]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_STOP_LIMIT_S)

    def _give(
        self,
        work: ProfilingQueue,
        under_way: dict[int, _UnderWay],
        arrived: "queue.SimpleQueue[tuple[int, Finished | Exception | None]]",
        stop: threading.Event,
    ) -> None:
        """Give groups to the slots that have nothing to do."""
        made = [number for number in self._left if number in under_way or self._slots[number].is_started]
        used = self._left if work.is_long or not made else made
        # Those that are busy get their part when they ask.
        parts = len(used)
        while idle := [number for number in used if number not in under_way]:
            group = work.take(parts)
            parts -= 1
            if group is None:
                return
            number = max(idle, key=partial(self._suits, group))
            thread = threading.Thread(
                target=_run, args=(number, self._slots[number], group, stop, arrived), daemon=True
            )
            under_way[number] = _UnderWay(group, thread)
            thread.start()

    def _suits(self, group: Group, number: int) -> tuple[int, bool]:
        """How well a slot suits a group: best where most of it is loaded, then where nothing has to be made."""
        loaded = self._loaded.get(number, frozenset()).intersection(group.keys)
        return len(loaded), self._slots[number].is_started

    def _do_without(self, number: int, error: Exception) -> None:
        """Use a slot no more.

        Raises:
            Exception: it was the last one.
        """
        self._slots[number].close()
        self._left.remove(number)
        if not self._left:
            raise error
        logger.warning("profiling goes on with %d of %d meshes: %s", len(self._left), len(self._slots), error)

    def _stop(self, under_way: dict[int, _UnderWay], stop: threading.Event) -> None:
        """End the slots that are in the middle of something, and wait until their threads are over."""
        stop.set()
        end = time.monotonic() + _STOP_LIMIT_S
        for number, each in under_way.items():
            while each.thread.is_alive() and time.monotonic() < end:
                # Again, since it may just have been making what is ended here.
                self._slots[number].close()
                each.thread.join(_STOP_AGAIN_S)
            self._slots[number].close()


def _run(
    number: int,
    slot: Slot,
    group: Group,
    stop: threading.Event,
    arrived: "queue.SimpleQueue[tuple[int, Finished | Exception | None]]",
) -> None:
    try:
        for finished in slot.measure(group.modules, group.drawn, group.samples, stop):
            arrived.put((number, finished))
    except StoppedError:
        arrived.put((number, None))
    except Exception as error:  # noqa: BLE001  it is told to the thread that waits
        arrived.put((number, error))
    else:
        arrived.put((number, None))
