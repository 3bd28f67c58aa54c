"""The best plans that a search has met.

Takes plans of a pruned problem; keeps those that fit and are among the best, in order. Invariant: equal plans in any
order give the same ranking.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from alpa_cfp.search.problem import SearchProblem, Solution
from alpa_cfp.search.prune import Pruned

# A bound this little above the best known time may be rounding.
SLACK = 1e-11


@dataclass(slots=True)
class Incumbents:
    """The best plans met so far that fit."""

    problem: SearchProblem
    pruned: Pruned
    budget_bytes: float
    best: int
    plans: dict[tuple[int, ...], Solution] = field(default_factory=dict)
    largest: int = 0
    labels: int = 0
    runs: int = 0
    # No plan that is missing takes less.
    proved_s: float = -math.inf

    def add(self, choices: tuple[int, ...]) -> Solution:
        """Evaluates a plan of the pruned problem and keeps it if it fits and is among the best."""
        found = self.problem.solution(self.pruned.given(choices))
        if found.memory.total <= self.budget_bytes and math.isfinite(found.time_s):
            self.plans[found.choices] = found
            self.plans = {plan.choices: plan for plan in self.ranked()}
        return found

    def ranked(self) -> tuple[Solution, ...]:
        """The best, cheapest first; of equal times the smaller memory, then the smaller choices, come first."""
        return tuple(sorted(self.plans.values(), key=lambda s: (s.time_s, s.memory.total, s.choices))[: self.best])

    def gap_s(self, plan: Solution) -> float:
        """By how many seconds at most a plan that is missing could be faster; 0 if by no more than rounding."""
        gap_s = plan.time_s - self.proved_s
        return gap_s if gap_s > SLACK * abs(plan.time_s) else 0.0

    def include(self, plans: Iterable[Solution]) -> None:
        """Takes plans that were met elsewhere."""
        self.plans |= {plan.choices: plan for plan in plans}
        self.plans = {plan.choices: plan for plan in self.ranked()}

    @property
    def limit_s(self) -> float:
        """The time that a further plan must not exceed to matter."""
        return self.ranked()[-1].time_s if len(self.plans) >= self.best else math.inf

    @property
    def best_s(self) -> float:
        """The best time known; inf if none is."""
        return self.ranked()[0].time_s if self.plans else math.inf

    @property
    def worst_s(self) -> float:
        """The slowest time known, even where more plans are wanted; inf if none is known."""
        return self.ranked()[-1].time_s if self.plans else math.inf
