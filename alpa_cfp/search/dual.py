"""A lower bound on the time of all plans that needs no more memory than the tables of the problem.

Takes a `SearchProblem` without excluded choices, a price of a byte and the largest transient that a plan may have;
gives a bound, and plans that are cheap by the bound's proof. Costs of a variable and its neighbours are shifted between
them by messages, in sweeps over the variables in both directions, so that as much as possible of each plan's cost is in
sums of minima (tree-reweighted message passing: Kolmogorov, "Convergent tree-reweighted message passing for energy
minimization" (2006)). Invariant: a bound is never above the true minimum, but for rounding: it is a sum of minima of
tables that add up to those of the problem, whatever the messages are.

Choices of too large a transient get a high finite cost here: infinities cannot be shifted. That lowers bounds at most.
"""

import math
from dataclasses import dataclass

import numpy as np

from alpa_cfp.search.limits import Deadline
from alpa_cfp.search.problem import Array, SearchProblem, Variable

# Sums of a few thousand terms are good to a tenth of it.
_ROUNDING = 1e-12
# The most sweeps at one price; a run ends earlier unless the bound rises by `_PROGRESS` of it in `_PATIENCE` sweeps.
_MOST_SWEEPS, _PATIENCE, _PROGRESS = 400, 8, 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class _Link:
    """All edges between two variables, added up: [lower variable's choice, higher one's]."""

    low: int
    high: int
    time_s: Array


class Dual:
    """Messages between the variables of a problem; they are kept from call to call.

    Args:
        problem: The problem.
        most_transient_bytes: Choices with more are excluded.
        deadline: After it `run` returns the best bound so far.
    """

    def __init__(self, problem: SearchProblem, most_transient_bytes: float, deadline: Deadline) -> None:
        self._deadline = deadline
        excluded_s = 2 * sum(float(np.ptp(each.time_s)) for each in (*problem.variables, *problem.edges))
        self._time_s = [_allowed(v, most_transient_bytes, excluded_s) for v in problem.variables]
        excludes = any((v.transient_bytes > most_transient_bytes).any() for v in problem.variables)
        self._rounding_s = excluded_s if excludes else 0.0
        self._bytes = [v.summed_bytes for v in problem.variables]
        links: dict[tuple[int, int], Array] = {}
        for edge, (i, j) in zip(problem.edges, problem.ends, strict=True):
            pair, time = ((i, j), edge.time_s) if i < j else ((j, i), edge.time_s.T)
            links[pair] = time + links[pair] if pair in links else time
        self._links = [_Link(*pair, time) for pair, time in links.items()]
        self._up: list[list[int]] = [[] for _ in problem.variables]
        self._down: list[list[int]] = [[] for _ in problem.variables]
        for number, link in enumerate(self._links):
            self._up[link.low].append(number)
            self._down[link.high].append(number)
        # To the higher and to the lower end of each link.
        self._to_high = [np.zeros(link.time_s.shape[1]) for link in self._links]
        self._to_low = [np.zeros(link.time_s.shape[0]) for link in self._links]
        self._most = [max(len(up), len(down), 1) for up, down in zip(self._up, self._down, strict=True)]

    def run(self, byte_s: float, enough: float) -> tuple[float, tuple[int, ...]]:
        """The best bound on `seconds + byte_s * summed bytes`, and the plan that was decoded with it.

        Stops where the bound hardly rises any more, at `enough`, and at the deadline.
        """
        unary = [time + byte_s * size for time, size in zip(self._time_s, self._bytes, strict=True)]
        best, plan = -math.inf, tuple(0 for _ in unary)
        reached: list[float] = []
        for _ in range(_MOST_SWEEPS):
            plan = self._decoded(unary)
            bound = max(self._sweep(unary, upward) for upward in (True, False))
            best = max(best, bound)
            reached.append(best)
            if best >= enough or self._deadline.is_over:
                break
            if len(reached) > _PATIENCE and best - reached[-1 - _PATIENCE] <= _PROGRESS * abs(best):
                break
        return best - _ROUNDING * (abs(best) + self._rounding_s), plan

    def _sweep(self, unary: list[Array], upward: bool) -> float:
        """Sends all messages one way and gives the bound that they prove; -inf if the deadline ends it early.

        A variable hands each neighbour ahead an equal part of its own cost; the rest is bounded by its minimum. Without
        a neighbour ahead that is all of the cost.
        """
        bound = 0.0
        for v in range(len(unary)) if upward else range(len(unary) - 1, -1, -1):
            if self._deadline.is_over:
                return -math.inf
            total = self._total(unary, v)
            part = total / self._most[v]
            ahead = self._up[v] if upward else self._down[v]
            left = 1.0 - len(ahead) / self._most[v]
            if left > 0:
                bound += left * float(total.min())
            for number in ahead:
                table = self._links[number].time_s
                if upward:
                    self._to_high[number] = (table + (part - self._to_low[number])[:, None]).min(axis=0)
                else:
                    self._to_low[number] = (table + (part - self._to_high[number])).min(axis=1)
        return bound

    def _total(self, unary: list[Array], v: int) -> Array:
        """A variable's own cost and all messages to it."""
        total = unary[v].copy()
        for number in self._down[v]:
            total += self._to_high[number]
        for number in self._up[v]:
            total += self._to_low[number]
        return total

    def _decoded(self, unary: list[Array]) -> tuple[int, ...]:
        """A plan chosen variable by variable: earlier neighbours count as chosen, later ones by their messages."""
        plan: list[int] = []
        for v, own in enumerate(unary):
            cost = own.copy()
            for number in self._down[v]:
                link = self._links[number]
                cost += link.time_s[plan[link.low]]
            for number in self._up[v]:
                cost += self._to_low[number]
            plan.append(int(cost.argmin()))
        return tuple(plan)


def _allowed(variable: Variable, most_bytes: float, excluded_s: float) -> Array:
    """A variable's times; choices with a larger transient cost so much more that no cheapest plan has one."""
    allowed = variable.transient_bytes <= most_bytes
    return np.where(allowed, variable.time_s, float(variable.time_s.min()) + excluded_s)
