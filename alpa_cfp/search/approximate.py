"""Plans and a lower bound for problems that the exact search cannot finish, in memory linear in the problem.

Takes an `Incumbent`, the best plan so far, and improves it; gives a lower bound on the time of every plan. Invariants:
after `begin` there is a plan that fits, and plans only get better; the bound is true (dual.py). Without a time limit it
ends, and gives the same each time.

It begins with simple plans (each variable's fastest choice, its leanest, its first) and improves them locally
(local.py). Then the bound is raised; plans that its proof suggests are improved locally, too. Where the largest
transient blurs the bound, plans are bounded by intervals of it, as in exact.py. What is left of the time is for moves
of forests of variables (local.py) and of a few variables at a time (neighbourhoods.py).

Why not a library: toulbar2 proved four unrolled LSTMs and U-Nets that were tried best within 0.1 to 22 s, where the
bound here stays 0.1% to 3% away from the same plans after 10 s; it is the better one there. But of 2,000 variables its
plans and bounds after 10 s were worse (a gap of 3.7% against 0.7% on a grid), and within a budget it had no plan.
HiGHS took 8 to more than 120 s for the small ones.
"""

import math

import numpy as np

from alpa_cfp.search.dual import Dual, Part
from alpa_cfp.search.incumbent import SLACK, Incumbent
from alpa_cfp.search.limits import Deadline
from alpa_cfp.search.local import Local
from alpa_cfp.search.neighbourhoods import improve_neighbourhoods
from alpa_cfp.search.problem import SearchProblem

# How much of the time that is left is for the bound, then for moves of forests, and then for neighbourhoods; what is
# left after these is for the bound again.
_BOUND_SHARE, _FORESTS_SHARE, _NEIGHBOURHOODS_SHARE = 0.5, 0.5, 0.7
# Parts of the plans are bounded by themselves from this stage on, by their transients if these blur the bound by more
# than this share of the gap; so many at most with and without a time limit; and not where the gap is as small as this.
_SPLIT, _SHARE, _MOST_PARTS, _FEW_PARTS, _CLOSE = 3, 0.05, 4096, 32, 1e-5
# The most forests that a plan is improved by in a row without success.
_MOST_FORESTS = 64
# How the price of a byte is changed for moves of forests, so that plans on both sides of the budget are tried.
_PRICES = (1.0, 1.02, 0.98, 1.1, 0.9)


def begin(known: Incumbent, deadline: Deadline) -> None:
    """Adds simple plans, and what they become when one choice is changed at a time; one fits, if any plan does."""
    problem = known.pruned.problem
    plans = _simple(problem)
    for plan in plans:
        known.add(plan)
    if known.plan is None:
        plans.append(problem.leanest())
        known.add(plans[-1])
    local = Local(problem, known.budget_bytes, deadline)
    for plan in plans:
        if deadline.is_over:
            return
        known.add(local.improved(plan))


def trivial_bound_s(problem: SearchProblem) -> float:
    """The sum of each table's minimum."""
    return sum(float(each.time_s.min()) for each in (*problem.variables, *problem.edges))


def approximate(known: Incumbent, deadline: Deadline, bound_s: float) -> float:
    """Improves on the plans of `begin` without tables of more than two variables.

    Takes a bound that is known, in seconds, and gives a better one.
    """
    problem = known.pruned.problem
    if known.is_proved(bound_s):
        return bound_s
    local = Local(problem, known.budget_bytes, deadline)

    seen: set[tuple[int, ...]] = set()

    def offer(plan: tuple[int, ...], byte_s: float) -> None:
        if plan not in seen and not deadline.is_over:
            seen.add(plan)
            known.add(plan)
            known.add(local.improved(plan, byte_s))

    bounds = _Bounds(known, Dual(problem, known.budget_bytes, offer, deadline), bound_s)
    bounds.run(deadline.part(_BOUND_SHARE))
    if not known.is_proved(bounds.bound_s):
        _improve_forests(known, local, bounds.byte_s, deadline.part(_FORESTS_SHARE))
        improve_neighbourhoods(known, bounds.bound_s, deadline.part(_NEIGHBOURHOODS_SHARE))
    bounds.run(deadline)
    return bounds.bound_s


class _Bounds:
    """Bounds of parts of all plans, the one with the least bound being worked on.

    Args:
        known: The best plan so far.
        dual: What bounds parts.
        least_s: A bound that is known.
    """

    def __init__(self, known: Incumbent, dual: Dual, least_s: float) -> None:
        self._known, self._dual, self._least_s = known, dual, least_s
        variables, budget_bytes = known.pruned.problem.variables, known.budget_bytes
        self._peaks = np.unique(np.concatenate([v.transient_bytes for v in variables]))
        # Each plan has at least the one, and at most the other transient.
        least = max(float(v.transient_bytes.min()) for v in variables)
        most = budget_bytes - sum(float(v.summed_bytes.min()) for v in variables)
        self._peaks = self._peaks[(self._peaks >= least) & (self._peaks <= most)]
        low = self._peaks[0 if math.isfinite(budget_bytes) else -1]
        self._parts = [Part(float(low), float(self._peaks[-1]))]

    @property
    def bound_s(self) -> float:
        """The bound on all plans."""
        return max(self._least_s, min(part.bound_s for part in self._parts))

    @property
    def byte_s(self) -> float:
        """The price of a byte that gives the best bound."""
        return min(self._parts, key=lambda part: part.bound_s).price

    def run(self, deadline: Deadline) -> None:
        """Until the best plan is proved to be the best, more work is hardly worth it, or the deadline is over."""
        most = _MOST_PARTS if math.isfinite(deadline.limit_s) else _FEW_PARTS
        while not deadline.is_over and not self._known.is_proved(self.bound_s):
            at = min(range(len(self._parts)), key=lambda number: self._parts[number].bound_s)
            part = self._parts[at]
            found = self._split(part) if part.stage >= _SPLIT and len(self._parts) < most else ()
            if not found and part.is_settled:
                return
            self._parts[at : at + 1] = found or (self._dual.turn(part, self._known.time_s),)

    def _split(self, part: Part) -> tuple[Part, ...]:
        """A part by its transients, if these blur its bound, or else by the bytes of a variable, if that may help."""
        gap_s = self._known.time_s - part.bound_s
        if not math.isfinite(self._known.budget_bytes) or gap_s <= _CLOSE * abs(part.bound_s):
            return ()
        # Where bytes have no price, plans fit if they are charged for the least transient, but they may not in full.
        if part.low < part.high and (not part.price or part.price * (part.high - part.low) > _SHARE * gap_s):
            inside = self._peaks[(self._peaks >= part.low) & (self._peaks <= part.high)]
            middle = len(inside) // 2
            ends = (part.low, float(inside[middle - 1])), (float(inside[middle]), part.high)
            return tuple(part.with_transients(*each) for each in ends)
        return part.split(self._known.pruned.problem, self._known.choices)


def _improve_forests(known: Incumbent, local: Local, byte_s: float, deadline: Deadline) -> None:
    """Improves the best plan by the moves of forests, at prices about the best one."""
    count = len(known.pruned.problem.variables)
    forests = min(count, _MOST_FORESTS)
    step = max(1, count // _MOST_FORESTS)
    for factor in _PRICES if byte_s else _PRICES[:1]:
        unchanged, price = 0, factor * byte_s
        for turn in range(4 * forests):
            if deadline.is_over or unchanged >= forests:
                break
            before = known.time_s
            moved = local.forest_improved(known.choices, turn * step % count, price)
            known.add(moved)
            known.add(local.improved(moved, price))
            unchanged = 0 if known.time_s < before * (1 - SLACK) else unchanged + 1


def _simple(problem: SearchProblem) -> list[tuple[int, ...]]:
    """The plans of each variable's fastest, leanest and first choice."""
    fastest = tuple(int(v.time_s.argmin()) for v in problem.variables)
    leanest = tuple(int(np.lexsort((v.time_s, v.summed_bytes + v.transient_bytes))[0]) for v in problem.variables)
    first = tuple(0 for _ in problem.variables)
    return list(dict.fromkeys((fastest, leanest, first)))
