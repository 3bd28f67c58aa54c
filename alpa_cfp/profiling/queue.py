"""The queue of programs to be measured: forms the groups that are measured together, and keeps what remains.

Takes the programs; gives groups as long as there are any, to one measurer or to several at once. The rest of a group
that ended early is queued again. A program whose failure another program, loaded at the same time, may have caused is
given alone, at the end. Invariant: a program either waits, or is in one group that is being measured, or is finished.
"""

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from alpa_cfp.database import ProfileKey
from alpa_cfp.profiling.process.protocol import Finished
from alpa_cfp.profiling.time_budget import TimeBudget
from alpa_cfp.spmd.module.hlo_module import HloModule

# Another program that is loaded at the same time may cause these.
_RETRIED_ALONE = ("out_of_memory", "crashed")


@dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Programs that are measured together.

    Attributes:
        keys: The keys of their profiles.
        modules: The programs, in the same order.
        samples: The number of times that each is timed.
        rng: Draws the order of their runs.
        remaining: The keys of those that are not finished, by their indexes.
        references: The number of programs, the first ones, that are in other groups, too: they tell how fast the mesh
            is while this group runs, and are not among `remaining`.
    """

    keys: tuple[ProfileKey, ...]
    modules: tuple[HloModule, ...]
    samples: int
    rng: random.Random
    remaining: dict[int, ProfileKey]
    references: int = 0


class ProfilingQueue:
    """Programs to be measured.

    Args:
        modules: The programs.
        samples: The number of times that each is timed.
        size: The number of programs in a group, at most.
        rng: Seeds the order of their runs.
        together: Whether all are one group, to be compared by small differences: the same program takes longer on one
            mesh, or at one time, than on another.
        budget: The time after which no group is given.
        references: Programs that are in each group; see `Group`.
    """

    def __init__(
        self,
        modules: Mapping[ProfileKey, HloModule],
        samples: int,
        size: int,
        rng: random.Random,
        *,
        together: bool = False,
        budget: TimeBudget | None = None,
        references: Mapping[ProfileKey, HloModule] | None = None,
    ) -> None:
        self._budget, self._references = budget or TimeBudget(), references or {}
        self._modules, self._samples, self._size, self._rng = modules, samples, size, rng
        self._together = together
        self._waiting, self._alone = deque(modules), deque[ProfileKey]()

    @property
    def is_long(self) -> bool:
        """Whether more programs wait than fit into one group."""
        return len(self._waiting) > self._size

    def take(self, measurers: int = 1) -> Group | None:
        """The next group, small enough that something is left for each of `measurers`; None if no program waits, or
        the time is over.
        """
        if self._budget.is_over:
            return None
        references = self._references
        if self._waiting:
            count = len(self._waiting)
            number = count if self._together else min(self._size, -(-count // measurers))
            keys = tuple(self._waiting.popleft() for _ in range(number))
        elif self._alone:
            keys, references = (self._alone.popleft(),), {}
        else:
            return None
        modules = (*references.values(), *(self._modules[key] for key in keys))
        rng, first = random.Random(self._rng.getrandbits(64)), len(references)
        return Group((*references, *keys), modules, self._samples, rng, dict(enumerate(keys, first)), first)

    def finish(self, group: Group, finished: Finished) -> ProfileKey | None:
        """The key of a program that a group has finished; None if it is queued once more, alone."""
        key = group.remaining.pop(finished.index)
        if finished.profile.failure in _RETRIED_ALONE and len(group.keys) - group.references > 1:
            self._alone.append(key)
            return None
        return key

    def end(self, group: Group) -> None:
        """Queue what remains of a group that has ended, as the next programs."""
        self._waiting.extendleft(reversed(group.remaining.values()))
        group.remaining.clear()
