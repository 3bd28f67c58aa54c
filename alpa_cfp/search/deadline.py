"""Limits of time and memory that long work looks at.

Takes seconds (None: no limit), which count from when it is made, and bytes (None: no limit). Invariants: without a
limit it never ends anything, so the search is deterministic; with one it raises a `Stopped`, which never leaves this
package. Memory is looked at before it is allocated: what needs it says how much that is.
"""

import math
import time
from dataclasses import dataclass, field, replace


class Stopped(Exception):
    """A limit was met."""


class OutOfTime(Stopped):
    """The time limit was met."""


class OutOfSpace(Stopped):
    """More memory would be needed than there may be."""

    def __init__(self, size_bytes: float) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


@dataclass(frozen=True, slots=True)
class Deadline:
    """`check` raises once more than `limit_s` seconds have passed, `allocate` for more than `memory_bytes`."""

    limit_s: float | None
    began_s: float = field(default_factory=time.perf_counter)
    memory_bytes: float | None = None

    @property
    def passed_s(self) -> float:
        """Seconds since it was made."""
        return time.perf_counter() - self.began_s

    @property
    def is_over(self) -> bool:
        """Whether it is time."""
        return self.limit_s is not None and self.passed_s > self.limit_s

    def part(self, share: float) -> "Deadline":
        """One that is over after a share of the time that is left."""
        if self.limit_s is None:
            return self
        passed_s = self.passed_s
        return replace(self, limit_s=passed_s + share * max(self.limit_s - passed_s, 0.0))

    def check(self) -> None:
        """Raises OutOfTime if it is time."""
        if self.is_over:
            raise OutOfTime

    def allocate(self, size_bytes: float) -> None:
        """Raises OutOfSpace if the search would have more than its memory with all that it is about to hold.

        Also without a limit where that is infinite: what no array can be.
        """
        if size_bytes > (math.inf if self.memory_bytes is None else self.memory_bytes) or math.isinf(size_bytes):
            raise OutOfSpace(size_bytes)
