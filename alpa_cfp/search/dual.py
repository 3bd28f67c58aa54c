"""A lower bound on the time of all plans that needs no more memory than the tables of the problem.

Takes a `SearchProblem`, a price of a byte and the largest transient that a plan may have; gives a bound, and plans that
are cheap by what the bound's proof knows. What a variable and its neighbours cost is shifted between them by messages,
in sweeps over the variables there and back, so that as much as possible of each plan's cost is in sums of minima
(tree-reweighted message passing: Kolmogorov, "Convergent tree-reweighted message passing for energy minimization"
(2006)). Invariant: a bound is never above the true minimum, but for rounding: it is a sum of minima of tables that add
up to those of the problem, whatever the messages are.

Excluded choices count as very dear here, and not as infinite: infinities cannot be shifted. That lowers bounds at most.
"""

import math
from dataclasses import dataclass

import numpy as np

from alpa_cfp.search.deadline import Deadline
from alpa_cfp.search.problem import Array, SearchProblem

# Sums of a few thousand terms are good to a tenth of it.
_ROUNDING = 1e-12
# Sweeps at one price at most, and over how many sweeps the bound must rise by how much of it to go on.
_MOST_SWEEPS, _PATIENCE, _PROGRESS = 400, 8, 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class _Link:
    """All edges between two variables, added up: [lower variable's choice, higher one's]."""

    low: int
    high: int
    time_s: Array
    state_bytes: Array | None


class Dual:
    """Messages between the variables of a problem; they stay from call to call.

    Args:
        problem: The problem.
        most_transient_bytes: Choices and pairs with more are excluded.
        deadline: When to give back what there is.
    """

    def __init__(self, problem: SearchProblem, most_transient_bytes: float, deadline: Deadline) -> None:
        self._deadline = deadline
        self._excluded_s = excluded_s = 2 * sum(_reach(each.time_s) for each in (*problem.variables, *problem.edges))
        self._time_s = [
            _allowed(v.time_s, v.transient_bytes, most_transient_bytes, excluded_s) for v in problem.variables
        ]
        tables = [(v.time_s, v.transient_bytes) for v in problem.variables]
        tables += [(edge.time_s, edge.transient_bytes) for edge in problem.edges]
        self._excludes = not all(
            np.isfinite(time).all() and (size <= most_transient_bytes).all() for time, size in tables
        )
        self._bytes = [v.state_bytes + v.saved_bytes for v in problem.variables]
        links: dict[tuple[int, int], _Link] = {}
        for edge, (i, j) in zip(problem.edges, problem.ends, strict=True):
            time = _allowed(edge.time_s, edge.transient_bytes, most_transient_bytes, excluded_s)
            state = edge.state_bytes if edge.state_bytes.any() else None
            if i > j:
                i, j, time, state = j, i, time.T, None if state is None else state.T
            before = links.get((i, j))
            if before is not None:
                time = time + before.time_s
                state = before.state_bytes if state is None else state + _or_zero(before.state_bytes)
            links[i, j] = _Link(i, j, time, state)
        self._links = list(links.values())
        self._up: list[list[int]] = [[] for _ in problem.variables]
        self._down: list[list[int]] = [[] for _ in problem.variables]
        for number, link in enumerate(self._links):
            self._up[link.low].append(number)
            self._down[link.high].append(number)
        # To the higher and to the lower end of each link.
        self._to_high = [np.zeros(link.time_s.shape[1]) for link in self._links]
        self._to_low = [np.zeros(link.time_s.shape[0]) for link in self._links]
        self._most = [max(len(up), len(down), 1) for up, down in zip(self._up, self._down, strict=True)]

    def run(self, second: float, byte_s: float, enough: float = math.inf) -> tuple[float, tuple[int, ...]]:
        """The best bound on `second * seconds + byte_s * summed bytes`, and the plan that was decoded with it.

        Stops where the bound hardly rises any more, at `enough`, and once it is time.
        """
        unary = [second * time + byte_s * size for time, size in zip(self._time_s, self._bytes, strict=True)]
        best, plan = -math.inf, tuple(0 for _ in unary)
        reached: list[float] = []
        for _ in range(_MOST_SWEEPS):
            plan = self._decoded(unary, second, byte_s)
            bound = max(self._sweep(unary, second, byte_s, upward) for upward in (True, False))
            best = max(best, bound)
            reached.append(best)
            if best >= enough or self._deadline.is_over:
                break
            if len(reached) > _PATIENCE and best - reached[-1 - _PATIENCE] <= _PROGRESS * abs(best):
                break
        return best - _ROUNDING * (abs(best) + second * self._excluded_s * self._excludes), plan

    def _sweep(self, unary: list[Array], second: float, byte_s: float, upward: bool) -> float:
        """Sends all messages one way and gives the bound that they prove; -inf if it is broken off.

        A variable hands each neighbour ahead an equal part of its own cost; what is left of it is bounded by its
        minimum, as all of it is where there is no neighbour ahead.
        """
        bound = 0.0
        for v in range(len(unary)) if upward else range(len(unary) - 1, -1, -1):
            if self._deadline.is_over:
                return -math.inf
            hat = self._hat(unary, v)
            part = hat / self._most[v]
            ahead = self._up[v] if upward else self._down[v]
            left = 1.0 - len(ahead) / self._most[v]
            if left > 0:
                bound += left * float(hat.min())
            for number in ahead:
                link = self._links[number]
                table = _priced(link, second, byte_s)
                if upward:
                    self._to_high[number] = (table + (part - self._to_low[number])[:, None]).min(axis=0)
                else:
                    self._to_low[number] = (table + (part - self._to_high[number])).min(axis=1)
        return bound

    def _hat(self, unary: list[Array], v: int) -> Array:
        hat = unary[v].copy()
        for number in self._down[v]:
            hat += self._to_high[number]
        for number in self._up[v]:
            hat += self._to_low[number]
        return hat

    def _decoded(self, unary: list[Array], second: float, byte_s: float) -> tuple[int, ...]:
        """A plan chosen variable by variable: those behind as they are chosen, those ahead by their messages."""
        plan: list[int] = []
        for v, own in enumerate(unary):
            cost = own.copy()
            for number in self._down[v]:
                link = self._links[number]
                cost += _priced_row(link, second, byte_s, plan[link.low])
            for number in self._up[v]:
                cost += self._to_low[number]
            plan.append(int(cost.argmin()))
        return tuple(plan)


def _priced(link: _Link, second: float, byte_s: float) -> Array:
    table = link.time_s if second == 1.0 else second * link.time_s
    return table if link.state_bytes is None or byte_s == 0 else table + byte_s * link.state_bytes


def _priced_row(link: _Link, second: float, byte_s: float, low: int) -> Array:
    row = second * link.time_s[low]
    return row if link.state_bytes is None else row + byte_s * link.state_bytes[low]


def _reach(time_s: Array) -> float:
    """The difference between the most and the least that is not excluded."""
    finite = time_s[np.isfinite(time_s)]
    return float(finite.max() - finite.min()) if finite.size else 0.0


def _allowed(time_s: Array, transient_bytes: Array, most_bytes: float, excluded_s: float) -> Array:
    """The times, with what is excluded as dear as to be in no plan."""
    allowed = np.isfinite(time_s) & (transient_bytes <= most_bytes)
    if allowed.all():
        return time_s
    least = float(time_s[np.isfinite(time_s)].min(initial=np.inf))
    return np.where(allowed, time_s, (0.0 if math.isinf(least) else least) + excluded_s)


def _or_zero(table: Array | None) -> Array | float:
    return 0.0 if table is None else table
