"""`TimeBudget`: the time after which nothing new is begun."""

import math
import time
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """A limit of time, from when this is made.

    Attributes:
        limit_s: Seconds; inf without limit.
        began_s: The clock when it was made.
    """

    limit_s: float = math.inf
    began_s: float = field(default_factory=time.perf_counter)

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return time.perf_counter() - self.began_s >= self.limit_s

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return math.isfinite(self.limit_s)
