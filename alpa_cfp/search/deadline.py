"""A time limit that long work looks at.

Takes seconds (None: no limit) and counts from when it is made. Invariant: without a limit it never ends anything, so
the search is deterministic; with one it raises `OutOfTime`, which never leaves this package.
"""

import time
from dataclasses import dataclass, field


class OutOfTime(Exception):
    """The time limit was met."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """`check` raises once more than `limit_s` seconds have passed."""

    limit_s: float | None
    began_s: float = field(default_factory=time.perf_counter)

    @property
    def passed_s(self) -> float:
        """Seconds since it was made."""
        return time.perf_counter() - self.began_s

    def check(self) -> None:
        """Raises OutOfTime if it is time."""
        if self.limit_s is not None and self.passed_s > self.limit_s:
            raise OutOfTime
