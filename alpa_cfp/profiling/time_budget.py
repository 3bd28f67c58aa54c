"""`TimeBudget`: the time after which nothing new is begun."""

import math
import time
from dataclasses import dataclass, field
from typing import Self

_MOMENT_S = 1e-6


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """A limit of time, from when this is made.

    Attributes:
        limit_s: Seconds; inf without limit.
        began_s: The clock when it was made.
    """

    limit_s: float = math.inf
    began_s: float = field(default_factory=time.perf_counter)

    @classmethod
    def of(cls, seconds: float | None) -> Self:
        """Returns a limit of so many seconds from now; None is no limit."""
        return cls(math.inf if seconds is None else seconds)

    def share(self, count: int) -> "TimeBudget":
        """Returns a limit from now that leaves as much for each of `count - 1` others."""
        return TimeBudget(self._rest_s / count) if self.is_limited else self

    @property
    def left_s(self) -> float | None:
        """What is left in seconds, above zero; None without limit."""
        return max(self._rest_s, _MOMENT_S) if self.is_limited else None

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self._rest_s <= 0

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return math.isfinite(self.limit_s)

    @property
    def _rest_s(self) -> float:
        return self.began_s + self.limit_s - time.perf_counter()
