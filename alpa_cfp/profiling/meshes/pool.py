"""Measure on several meshes at once, each of which measures one group after the other.

Takes runners of meshes and a queue of programs; gives each finished profile as it comes, from whichever mesh. Each
group that is being measured has a thread, which only waits for the hosts; all else is done by the calling thread. A
mesh that cannot be made, or is lost repeatedly, is not used any more, and the rest of its group goes to the others.
Invariants: it is an error only if no mesh is left; a call that ends early leaves no thread that still makes something;
after `close` nothing is left of any mesh.
"""

import logging
import queue
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial

from alpa_cfp.database import ProfileKey
from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling.meshes.hosts import HostsRunner
from alpa_cfp.profiling.meshes.machines import StoppedError
from alpa_cfp.profiling.process.protocol import Finished
from alpa_cfp.profiling.queue import Group, ProfilingQueue
from alpa_cfp.spmd.errors import SpmdError
from alpa_cfp.spmd.module.hlo_module import HloModule

logger = logging.getLogger(__name__)

# A runner's call ends soon after its hosts have; one that does not is abandoned.
_STOP_LIMIT_S = 60.0
_STOP_AGAIN_S = 0.5

_Arrived = queue.SimpleQueue[tuple[int, Finished | Exception | None]]


@dataclass(frozen=True, slots=True)
class _RunningGroup:
    group: Group
    thread: threading.Thread


class Pool:
    """Measures groups of programs on several meshes.

    Args:
        runners: The first mesh is made first; the others when there is more to measure than one group.
    """

    def __init__(self, runners: Sequence[HostsRunner]) -> None:
        self._runners = tuple(runners)
        self._usable = list(range(len(runners)))
        # The programs of each runner's last group, which are still loaded there.
        self._loaded: dict[int, frozenset[ProfileKey]] = {}

    def start(self) -> None:
        """Make a mesh, if there is none.

        Raises:
            ProfilingError, SpmdError: none can be made; the error of the last one.
        """
        self._usable = self._usable or list(range(len(self._runners)))
        while not any(self._runners[number].is_started for number in self._usable):
            number = self._usable[0]
            try:
                self._runners[number].start(threading.Event())
            except (ProfilingError, SpmdError) as error:
                self._drop(number, error)

    def prepare(self, modules: Sequence[HloModule]) -> None:
        """As `start`. The meshes compile when they measure, since it is not known which of them will."""
        del modules
        self.start()

    def measure(self, work: ProfilingQueue) -> Generator[tuple[Group, Finished]]:
        """Measure all groups.

        Raises:
            ProfilingError, SpmdError: no mesh is left; the error of the last one.
        """
        arrived: _Arrived = queue.SimpleQueue()
        stop, running = threading.Event(), dict[int, _RunningGroup]()
        try:
            while True:
                self._start_groups(work, running, arrived, stop)
                if not running:
                    return
                number, event = arrived.get()
                if isinstance(event, Finished):
                    yield running[number].group, event
                    continue
                group = running.pop(number).group
                work.end(group)
                self._loaded[number] = frozenset(group.keys)
                if isinstance(event, ProfilingError | SpmdError):
                    self._drop(number, event)
                elif event is not None:
                    raise event
        finally:
            self._stop(running, stop)

    def close(self) -> None:
        """End all meshes."""
        threads = [threading.Thread(target=runner.close, daemon=True) for runner in self._runners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_STOP_LIMIT_S)

    def _start_groups(
        self, work: ProfilingQueue, running: dict[int, _RunningGroup], arrived: _Arrived, stop: threading.Event
    ) -> None:
        """Start a group on each idle runner."""
        made = [number for number in self._usable if number in running or self._runners[number].is_started]
        used = self._usable if work.is_long or not made else made
        # Those that are busy take their part later.
        parts = len(used)
        while idle := [number for number in used if number not in running]:
            group = work.take(parts)
            parts -= 1
            if group is None:
                return
            number = max(idle, key=partial(self._affinity, group))
            thread = threading.Thread(
                target=_run, args=(number, self._runners[number], group, stop, arrived), daemon=True
            )
            running[number] = _RunningGroup(group, thread)
            thread.start()

    def _affinity(self, group: Group, number: int) -> tuple[int, bool]:
        """How well a runner suits a group: best where most of it is loaded, then where the mesh is made."""
        loaded = self._loaded.get(number, frozenset()).intersection(group.keys)
        return len(loaded), self._runners[number].is_started

    def _drop(self, number: int, error: Exception) -> None:
        """Use a runner no more.

        Raises:
            Exception: `error`, if it was the last one.
        """
        self._runners[number].close()
        self._usable.remove(number)
        if not self._usable:
            raise error
        logger.warning("profiling goes on with %d of %d meshes: %s", len(self._usable), len(self._runners), error)

    def _stop(self, running: dict[int, _RunningGroup], stop: threading.Event) -> None:
        """End the meshes that are measuring, and wait until their threads are over."""
        stop.set()
        end = time.monotonic() + _STOP_LIMIT_S
        for number, each in running.items():
            while each.thread.is_alive() and time.monotonic() < end:
                # Again, since it may just have been making what is ended here.
                self._runners[number].close()
                each.thread.join(_STOP_AGAIN_S)
            self._runners[number].close()


def _run(number: int, runner: HostsRunner, group: Group, stop: threading.Event, arrived: _Arrived) -> None:
    try:
        for finished in runner.measure(group, stop):
            arrived.put((number, finished))
    except StoppedError:
        arrived.put((number, None))
    except Exception as error:  # noqa: BLE001  it is passed to the thread that waits
        arrived.put((number, error))
    else:
        arrived.put((number, None))
