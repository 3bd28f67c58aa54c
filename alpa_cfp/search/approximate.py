"""Plans and a bound where the exact search does not fit: in memory linear in the problem, and as soon as one looks.

Takes `Incumbents`, which it fills with plans; gives back a lower bound on the time of every plan. Invariants: there is
a plan from the start; plans only get better; the bound is true (dual.py). Without a time limit it ends on its own, and
gives the same each time.

It begins with plain plans (each variable's fastest choice, its leanest, its first) and improves them locally
(local.py); then the bound's proof says which plans are promising. With a budget the price of a byte is looked for where
the cheapest plan that is too big and one that fits cost the same, as in multiplier.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from alpa_cfp.search.deadline import Deadline
from alpa_cfp.search.dual import Dual
from alpa_cfp.search.incumbents import SLACK, Incumbents
from alpa_cfp.search.local import Local
from alpa_cfp.search.problem import SearchProblem

# Prices of a byte that are tried, and forests that a plan is improved by, at most.
_MOST_PRICES, _MOST_FORESTS = 8, 64
# The share of the bound that two prices must differ by to be told apart.
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class Approximated:
    """`bound_s`: no plan that fits takes less. `nothing_fits`: it is proved that none does.

    `leanest`: the plan of least memory that was met, as choices of the given problem.
    """

    bound_s: float
    nothing_fits: bool = False
    leanest: tuple[int, ...] = ()


def begin(known: Incumbents, deadline: Deadline) -> None:
    """Plain plans and what they become when one choice is changed at a time, of which one fits if that is easy.

    The deadline counts once there is a plan that fits.
    """
    problem = known.pruned.problem
    plain = _plain(problem)
    for plan in plain:
        known.add(plan)
    for plan in plain:
        if known.plans and deadline.is_over:
            return
        known.add(Local(problem, known.budget_bytes, deadline if known.plans else Deadline(None)).improved(plan))


def plain_bound_s(problem: SearchProblem) -> float:
    """What no plan can be faster than, at once: the least of each table."""
    tables = [each.time_s for each in (*problem.variables, *problem.edges)]
    return sum(float(table.min(initial=math.inf)) for table in tables)


def approximate(known: Incumbents, deadline: Deadline) -> Approximated:
    """The best plans that can be had without tables of more than two variables, and a bound."""
    problem = known.pruned.problem
    begin(known, deadline)
    if not math.isfinite(known.budget_bytes):
        dual = Dual(problem, math.inf, deadline)
        bound_s, plan = dual.run(1.0, 0.0, known.best_s)
        _Improving(known, deadline, 0.0).run(plan)
        return Approximated(bound_s)
    least = sum(float((v.state_bytes + v.saved_bytes).min()) for v in problem.variables)
    least += sum(float(each.state_bytes.min(initial=0.0)) for each in problem.edges)
    dual = Dual(problem, known.budget_bytes - least, deadline)
    # Each plan has at least this transient.
    peak = max(float(v.transient_bytes.min()) for v in problem.variables)
    capacity = known.budget_bytes - peak
    bound_s, fastest = dual.run(1.0, 0.0, known.best_s)
    _Improving(known, deadline, 0.0).run(fastest)
    if known.best_s <= bound_s * (1 + SLACK):
        return Approximated(bound_s)
    lean_bytes, lean = Dual(problem, math.inf, deadline).run(0.0, 1.0)
    lean = Local(problem, 0.0, deadline).improved(lean)
    known.add(lean)
    _Improving(known, deadline, 0.0).run(lean)
    leanest = known.pruned.given(lean)
    if lean_bytes > capacity:
        return Approximated(math.inf, nothing_fits=not known.plans, leanest=leanest)
    bound_s = _priced(known, dual, capacity, bound_s, (fastest, lean), deadline)
    return Approximated(bound_s, leanest=leanest)


def _priced(
    known: Incumbents,
    dual: Dual,
    capacity: float,
    bound_s: float,
    ends: tuple[Sequence[int], Sequence[int]],
    deadline: Deadline,
) -> float:
    """The best bound over prices of a byte, which are looked for between a plan that is too big and one that fits."""
    problem = known.pruned.problem
    (big_s, big_bytes), (fits_s, fits_bytes) = (_cost(problem, plan) for plan in ends)
    tried: list[float] = []
    for _ in range(_MOST_PRICES):
        if deadline.is_over or big_bytes <= fits_bytes or not math.isfinite(fits_s - big_s):
            break
        price = max(0.0, (fits_s - big_s) / (big_bytes - fits_bytes))
        if any(abs(price - other) <= _CLOSE * other for other in tried) or not price:
            break
        tried.append(price)
        found, plan = dual.run(1.0, price, known.best_s + price * capacity)
        bound_s = max(bound_s, found - price * capacity - _CLOSE * _CLOSE * price * capacity)
        _Improving(known, deadline, price).run(plan)
        if known.best_s <= bound_s * (1 + SLACK):
            break
        time_s, size_bytes = _cost(problem, plan)
        if size_bytes > capacity:
            big_s, big_bytes = time_s, size_bytes
        else:
            fits_s, fits_bytes = time_s, size_bytes
    return bound_s


@dataclass(frozen=True, slots=True)
class _Improving:
    """Improves a plan at a price of a byte, and keeps what it meets."""

    known: Incumbents
    deadline: Deadline
    byte_s: float

    def run(self, plan: Sequence[int]) -> None:
        """Until no forest and no single choice makes it better."""
        problem = self.known.pruned.problem
        local = Local(problem, self.known.budget_bytes, self.deadline)
        self.known.add(tuple(plan))
        plan = local.improved(plan)
        self.known.add(plan)
        count = len(problem.variables)
        step = max(1, count // _MOST_FORESTS)
        since = 0
        for turn in range(4 * min(count, _MOST_FORESTS)):
            if self.deadline.is_over or since >= min(count, _MOST_FORESTS):
                return
            better = local.forest_improved(plan, turn * step % count, self.byte_s)
            if better == tuple(plan):
                since += 1
                continue
            plan, since = local.improved(better), 0
            self.known.add(plan)


def _plain(problem: SearchProblem) -> list[tuple[int, ...]]:
    """Each variable's fastest, leanest and first choice."""
    fastest = tuple(int(np.argmin(v.time_s)) for v in problem.variables)
    leanest = tuple(
        int(np.lexsort((v.time_s, v.state_bytes + v.saved_bytes + v.transient_bytes, np.isinf(v.time_s)))[0])
        for v in problem.variables
    )
    first = tuple(0 for _ in problem.variables)
    return list(dict.fromkeys((fastest, leanest, first)))


def _cost(problem: SearchProblem, plan: Sequence[int]) -> tuple[float, float]:
    """Seconds and summed bytes."""
    memory = problem.memory(plan)
    return problem.time(plan), float(memory.state + memory.saved)
