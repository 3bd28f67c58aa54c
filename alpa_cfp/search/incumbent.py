"""The best plan so far.

Takes plans of a pruned problem; keeps the best of those that fit the budget. Invariant: plans only get better.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from alpa_cfp.search.problem import SearchProblem, Solution
from alpa_cfp.search.prune import Pruned

# A bound this little above the best known time, relative to it, may be rounding.
SLACK = 1e-11


@dataclass(slots=True)
class Incumbent:
    """The best plan so far that fits: the fastest, of equal times the smallest, of these the first by its choices.

    `choices` are those of the plan in the pruned problem. A plan is good enough if it is slower than a bound by at most
    the share `enough` of it.
    """

    problem: SearchProblem
    pruned: Pruned
    budget_bytes: float
    plan: Solution | None = None
    choices: tuple[int, ...] = ()
    enough: float = 0.0

    def add(self, choices: Sequence[int]) -> Solution:
        """Evaluates a plan of the pruned problem, and keeps it if it fits and is better."""
        found = self.problem.solution(self.pruned.given(choices))
        if found.memory.total <= self.budget_bytes and self._is_better(found):
            self.plan, self.choices = found, tuple(choices)
        return found

    def _is_better(self, plan: Solution) -> bool:
        return self.plan is None or _rank(plan) < _rank(self.plan)

    @property
    def time_s(self) -> float:
        """The best time so far; inf without a plan."""
        return math.inf if self.plan is None else self.plan.time_s

    def is_proved(self, bound_s: float) -> bool:
        """Whether the best plan is as fast as a bound, or good enough."""
        return self.time_s <= bound_s + max(self.enough, SLACK) * abs(bound_s)


def _rank(plan: Solution) -> tuple[float, int, tuple[int, ...]]:
    return plan.time_s, plan.memory.total, plan.choices
