"""Collect the hosts' events for each program of a task, and find the programs at which meshes were lost.

Takes the events of each host; gives one profile once all hosts have made theirs, and after a loss those programs that
are not tried again. A program at which meshes were lost `ATTEMPTS` times has failed, on whichever meshes. The failure
is permanent if each time a process ended without a cause from outside: a process that was killed, or a host that is
gone, tells nothing about the program that happened to run. Invariant: a program is known by its bytes, and all
measurers of the same programs share one list of losses.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from alpa_cfp.database import Profile
from alpa_cfp.profiling.process.protocol import Finished, Suspected

# How often a program is begun at which a mesh was lost, and how often a mesh is made that finishes nothing.
ATTEMPTS = 3


@dataclass(slots=True)
class Progress:
    """The hosts' results for the programs of a task, by the programs' indexes in it.

    Attributes:
        hosts: The number of hosts.
        profiles: Each host's profile of a program.
        ended_at: The programs at which a host's process ended, each with its most informative failed profile.
        suspected: The programs that were compiled at the same time when a host's process ended.
        finished: The programs whose profile was given.
    """

    hosts: int
    profiles: dict[int, list[Profile]] = field(default_factory=dict)
    ended_at: dict[int, Finished] = field(default_factory=dict)
    suspected: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)

    def add(self, event: Finished | Suspected) -> Finished | None:
        """Add a host's event; gives a program's profile once every host has one, or one host cannot compile it."""
        if isinstance(event, Suspected):
            self.suspected.update(event.indexes)
            return None
        # Whatever is wrong with a program that runs ends the process of the host.
        if event.profile.failure not in (None, "compile_failed"):
            # Only the host whose memory was short reports that.
            if event.index not in self.ended_at or event.profile.failure == "out_of_memory":
                self.ended_at[event.index] = event
            return None
        profiles = self.profiles.setdefault(event.index, [])
        profiles.append(event.profile)
        if event.index in self.finished or (event.profile.status != "failed" and len(profiles) < self.hosts):
            return None
        self.finished.add(event.index)
        return Finished(event.index, of_all_hosts(profiles))


class Losses:
    """The programs at which meshes were lost; thread-safe.

    Attributes:
        suspects: The programs that are compiled alone from now on.
    """

    def __init__(self) -> None:
        self.suspects = set[bytes]()
        self._from_outside: dict[bytes, list[bool]] = {}
        self._lock = threading.Lock()

    def add(self, programs: Sequence[bytes], progress: Progress, *, from_outside: bool) -> list[Finished | Suspected]:
        """Add the loss of a mesh; gives the programs that have failed by now, and new suspects.

        Args:
            programs: The programs of the task that was going on.
            progress: The hosts' results up to the loss.
            from_outside: Whether a host is gone with all its processes.
        """
        found: list[Finished | Suspected] = []
        # One process that is killed ends those of the other hosts, too, and these in the middle of the program.
        outside = from_outside or not all(finished.is_permanent for finished in progress.ended_at.values())
        with self._lock:
            suspected = {
                index for index in progress.suspected - progress.finished if programs[index] not in self.suspects
            }
            if suspected:
                found.append(Suspected(tuple(sorted(suspected))))
            for index, finished in progress.ended_at.items():
                if index in progress.finished:
                    continue
                memory_was_short = finished.profile.failure == "out_of_memory"
                losses = self._from_outside.setdefault(programs[index], [])
                losses.append(outside and not memory_was_short)
                if len(losses) >= ATTEMPTS or memory_was_short:
                    found.append(replace(finished, is_permanent=memory_was_short or not any(losses)))
        return found


def of_all_hosts(profiles: Sequence[Profile]) -> Profile:
    """The profile of the runs that several hosts made together: each run's longest time, the most memory."""
    for profile in profiles:
        if profile.status == "failed":
            return profile
    samples = zip(*(profile.samples_s for profile in profiles), strict=True)
    most = {
        name: max(getattr(profile, name) for profile in profiles)
        for name in ("compile_s", "argument_bytes", "output_bytes", "temporary_bytes")
    }
    return replace(profiles[0], samples_s=tuple(map(max, samples)), **most)
