"""What is known of a task's programs on several hosts, and of those at which meshes were lost.

Takes what each host says of a program; gives one profile once all have said it, and after a loss those programs that
are not tried again. A program at which meshes were lost `ATTEMPTS` times has failed, whichever meshes these were. It
has failed for good if each time something ended by itself: a process that was killed from outside, or a host that is
gone, says nothing of the program that happened to run. Invariant: a program is in one list of losses, known by its
bytes, and all that measure it share that.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from alpa_cfp.database import Profile
from alpa_cfp.profiling.process.events import Finished
from alpa_cfp.profiling.process.protocol import Suspected

# How often a program is begun at which a mesh was lost, and how often a mesh is made that does nothing.
ATTEMPTS = 3


@dataclass(slots=True)
class Progress:
    """What is known of the programs of a task, by their numbers in it.

    Attributes:
        hosts: How many there are.
        profiles: What each has made of a program.
        ended_at: The programs at which a host's process ended, each with the failed profile that tells most.
        suspected: The programs that were compiled at the same time when a host's process ended.
        finished: The programs whose profile is given.
    """

    hosts: int
    profiles: dict[int, list[Profile]] = field(default_factory=dict)
    ended_at: dict[int, Finished] = field(default_factory=dict)
    suspected: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)

    def add(self, event: Finished | Suspected) -> Finished | None:
        """The profile of a program, once every host has made its own of it, or one host cannot compile it."""
        if isinstance(event, Suspected):
            self.suspected.update(event.indexes)
            return None
        if _ended(event.profile):
            # That memory was short is known only where it was.
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
    """At which programs meshes were lost; can be told in any thread.

    Attributes:
        suspects: The programs that are compiled alone from now on.
    """

    def __init__(self) -> None:
        self.suspects = set[bytes]()
        self._from_outside: dict[bytes, list[bool]] = {}
        self._lock = threading.Lock()

    def learn(self, programs: Sequence[bytes], progress: Progress, *, from_outside: bool) -> list[Finished | Suspected]:
        """What is known now that was not before: the programs that have failed, and those that are suspected.

        Args:
            programs: Those of the task that was under way.
            progress: What the hosts have said by then.
            from_outside: Whether a host is gone with all that it had.
        """
        known: list[Finished | Suspected] = []
        # One process that is killed ends those of the other hosts, too, and these in the middle of the program.
        outside = from_outside or not all(finished.is_lasting for finished in progress.ended_at.values())
        with self._lock:
            suspected = {
                index for index in progress.suspected - progress.finished if programs[index] not in self.suspects
            }
            if suspected:
                known.append(Suspected(tuple(sorted(suspected))))
            for index, finished in progress.ended_at.items():
                if index in progress.finished:
                    continue
                is_short = finished.profile.failure == "out_of_memory"
                losses = self._from_outside.setdefault(programs[index], [])
                losses.append(outside and not is_short)
                if len(losses) >= ATTEMPTS or is_short:
                    known.append(replace(finished, is_lasting=is_short or not any(losses)))
        return known


def _ended(profile: Profile) -> bool:
    """Whether a host's process ended with this program: whatever is wrong with a program that runs ends it."""
    return profile.status == "failed" and profile.failure != "compile_failed"


def of_all_hosts(profiles: Sequence[Profile]) -> Profile:
    """One profile of those that the hosts made of the same runs: each run's longest time, the most memory."""
    for profile in profiles:
        if profile.status == "failed":
            return profile
    first = profiles[0]
    samples = zip(*(profile.samples_s for profile in profiles), strict=True)
    most = {
        name: max(getattr(profile, name) for profile in profiles)
        for name in ("compile_s", "argument_bytes", "output_bytes", "temporary_bytes")
        if all(getattr(profile, name) is not None for profile in profiles)
    }
    return replace(first, samples_s=tuple(map(max, samples)), **most)
