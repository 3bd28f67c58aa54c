"""Plans and a lower bound for problems that the exact search cannot finish, in memory linear in the problem.

Takes an `Incumbent`, the best plan so far, and improves it; gives a lower bound on the time of every plan. Invariants:
after `begin` there is a plan that fits, and plans only get better; the bound is true (dual.py). Without a time limit it
ends, and gives the same each time.

It begins with simple plans (each variable's fastest choice, its leanest, its first) and improves them locally
(local.py). Then the plans that the bound's proof suggests are improved too. With a budget it looks for the price of a
byte at which the cheapest plan that is too large and one that fits cost the same, as in multiplier.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from alpa_cfp.search.dual import Dual
from alpa_cfp.search.limits import Deadline
from alpa_cfp.search.local import Local
from alpa_cfp.search.problem import SearchProblem, Solution
from alpa_cfp.search.prune import Pruned

# A bound this little above the best known time, relative to it, may be rounding.
SLACK = 1e-11
# The most prices of a byte that are tried, and the most forests that a plan is improved by.
_MOST_PRICES, _MOST_FORESTS = 8, 64
# Two prices that differ by a smaller share count as equal.
_CLOSE = 1e-9


@dataclass(slots=True)
class Incumbent:
    """The best plan so far that fits: the fastest, of equal times the smallest, of these the first by its choices."""

    problem: SearchProblem
    pruned: Pruned
    budget_bytes: float
    plan: Solution | None = None

    def add(self, choices: Sequence[int]) -> Solution:
        """Evaluates a plan of the pruned problem, and keeps it if it fits and is better."""
        found = self.problem.solution(self.pruned.given(choices))
        if found.memory.total <= self.budget_bytes:
            self.include(found)
        return found

    def include(self, plan: Solution | None) -> None:
        """Keeps a plan that fits if it is better."""
        if plan is not None and (self.plan is None or _rank(plan) < _rank(self.plan)):
            self.plan = plan

    @property
    def time_s(self) -> float:
        """The best time so far; inf without a plan."""
        return math.inf if self.plan is None else self.plan.time_s


def begin(known: Incumbent, deadline: Deadline) -> None:
    """Adds simple plans, and what they become when one choice is changed at a time; one fits, if any plan does."""
    problem = known.pruned.problem
    plans = _simple(problem)
    for plan in plans:
        known.add(plan)
    if known.plan is None:
        plans.append(problem.leanest())
        known.add(plans[-1])
    for plan in plans:
        if deadline.is_over:
            return
        known.add(Local(problem, known.budget_bytes, deadline).improved(plan))


def trivial_bound_s(problem: SearchProblem) -> float:
    """The sum of each table's minimum."""
    return sum(float(each.time_s.min()) for each in (*problem.variables, *problem.edges))


def approximate(known: Incumbent, deadline: Deadline) -> float:
    """Improves on the plans of `begin` without tables of more than two variables; gives a bound in seconds."""
    problem = known.pruned.problem
    if not math.isfinite(known.budget_bytes):
        bound_s, plan = Dual(problem, math.inf, deadline).run(0.0, known.time_s)
        _improve(known, deadline, 0.0, plan)
        return bound_s
    least_bytes = sum(float(v.summed_bytes.min()) for v in problem.variables)
    dual = Dual(problem, known.budget_bytes - least_bytes, deadline)
    bound_s, fastest = dual.run(0.0, known.time_s)
    _improve(known, deadline, 0.0, fastest)
    if known.time_s <= bound_s * (1 + SLACK):
        return bound_s
    smallest = [int(v.summed_bytes.argmin()) for v in problem.variables]
    lean = Local(problem, 0.0, deadline).improved(smallest)
    _improve(known, deadline, 0.0, lean)
    # Each plan has at least this transient.
    peak = max(float(v.transient_bytes.min()) for v in problem.variables)
    return _priced(known, dual, known.budget_bytes - peak, bound_s, (fastest, lean), deadline)


def _priced(
    known: Incumbent,
    dual: Dual,
    capacity: float,
    bound_s: float,
    ends: tuple[Sequence[int], Sequence[int]],
    deadline: Deadline,
) -> float:
    """The best bound over prices of a byte, which are looked for between a plan that is too large and one that fits."""
    problem = known.pruned.problem
    (big_s, big_bytes), (fits_s, fits_bytes) = (_cost(problem, plan) for plan in ends)
    tried: list[float] = []
    for _ in range(_MOST_PRICES):
        if deadline.is_over or big_bytes <= fits_bytes:
            break
        price = max(0.0, (fits_s - big_s) / (big_bytes - fits_bytes))
        if any(abs(price - other) <= _CLOSE * other for other in tried) or not price:
            break
        tried.append(price)
        found, plan = dual.run(price, known.time_s + price * capacity)
        bound_s = max(bound_s, found - price * capacity - _CLOSE * _CLOSE * price * capacity)
        _improve(known, deadline, price, plan)
        if known.time_s <= bound_s * (1 + SLACK):
            break
        time_s, size_bytes = _cost(problem, plan)
        if size_bytes > capacity:
            big_s, big_bytes = time_s, size_bytes
        else:
            fits_s, fits_bytes = time_s, size_bytes
    return bound_s


def _improve(known: Incumbent, deadline: Deadline, byte_s: float, plan: Sequence[int]) -> None:
    """Improves a plan at a price of a byte until no forest and no single choice makes it better; adds what it meets."""
    problem = known.pruned.problem
    local = Local(problem, known.budget_bytes, deadline)
    known.add(plan)
    plan = local.improved(plan)
    known.add(plan)
    count = len(problem.variables)
    forests = min(count, _MOST_FORESTS)
    step = max(1, count // _MOST_FORESTS)
    unchanged = 0
    for turn in range(4 * forests):
        if deadline.is_over or unchanged >= forests:
            return
        better = local.forest_improved(plan, turn * step % count, byte_s)
        if better == plan:
            unchanged += 1
            continue
        plan, unchanged = local.improved(better), 0
        known.add(plan)


def _simple(problem: SearchProblem) -> list[tuple[int, ...]]:
    """The plans of each variable's fastest, leanest and first choice."""
    fastest = tuple(int(v.time_s.argmin()) for v in problem.variables)
    leanest = tuple(int(np.lexsort((v.time_s, v.summed_bytes + v.transient_bytes))[0]) for v in problem.variables)
    first = tuple(0 for _ in problem.variables)
    return list(dict.fromkeys((fastest, leanest, first)))


def _cost(problem: SearchProblem, plan: Sequence[int]) -> tuple[float, float]:
    """Seconds and summed bytes."""
    memory = problem.memory(plan)
    return problem.time(plan), float(memory.state + memory.saved)


def _rank(plan: Solution) -> tuple[float, int, tuple[int, ...]]:
    return plan.time_s, plan.memory.total, plan.choices
