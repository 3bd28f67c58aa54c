"""What is to be measured, in groups: which program is measured beside which, and which are left.

Takes the programs; gives groups as long as there are any, to one that measures or to several at once. What is left of
a group that ended early is given again. What may have failed for the sake of another program that was loaded at the
same time is given alone, at the end. Invariant: a program is in one place: it waits, or is in one group that is under
way, or is finished.
"""

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from alpa_cfp.database import ProfileKey
from alpa_cfp.profiling.process.events import Finished
from alpa_cfp.spmd.module.hlo_module import HloModule

# Of these, another program that is loaded at the same time may be the cause.
_DOUBTFUL = ("out_of_memory", "crashed")


@dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Programs that are measured together.

    Attributes:
        keys: Their names.
        modules: The programs, in the same order.
        samples: How often each is to be timed.
        drawn: Decides the order of their runs.
        left: The names of those that are not finished, by their places.
    """

    keys: tuple[ProfileKey, ...]
    modules: tuple[HloModule, ...]
    samples: int
    drawn: random.Random
    left: dict[int, ProfileKey]


class ProfilingQueue:
    """Programs to be measured.

    Args:
        modules: The programs.
        samples: How often each is to be timed.
        size: How many are in a group at most.
        drawn: Decides the order of their runs.
        together: Whether they are to be told apart by small differences, so that all are one group: the same program
            takes longer on one mesh, or at one time, than on another.
    """

    def __init__(
        self,
        modules: Mapping[ProfileKey, HloModule],
        samples: int,
        size: int,
        drawn: random.Random,
        *,
        together: bool = False,
    ) -> None:
        self._modules, self._samples, self._size, self._drawn = modules, samples, size, drawn
        self._together = together
        self._waiting, self._alone = deque(modules), deque[ProfileKey]()

    @property
    def is_long(self) -> bool:
        """Whether more wait than are in one group."""
        return len(self._waiting) > self._size

    def take(self, at_once: int = 1) -> Group | None:
        """The next group, of as many programs as leaves some for each of `at_once` that measure; None if none waits."""
        if self._waiting:
            count = len(self._waiting)
            number = count if self._together else min(self._size, -(-count // at_once))
            keys = tuple(self._waiting.popleft() for _ in range(number))
        elif self._alone:
            keys = (self._alone.popleft(),)
        else:
            return None
        modules = tuple(self._modules[key] for key in keys)
        drawn = random.Random(self._drawn.getrandbits(64))
        return Group(keys, modules, self._samples, drawn, dict(enumerate(keys)))

    def finish(self, group: Group, finished: Finished) -> ProfileKey | None:
        """The name of the program that a group has finished; None if it is given once more, alone."""
        key = group.left.pop(finished.index)
        if finished.profile.failure in _DOUBTFUL and len(group.keys) > 1:
            self._alone.append(key)
            return None
        return key

    def end(self, group: Group) -> None:
        """A group is over; what is left of it comes next."""
        self._waiting.extendleft(reversed(group.left.values()))
        group.left.clear()
