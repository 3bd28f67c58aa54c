"""Plans and a lower bound for problems that the exact search cannot finish, in memory linear in the problem.

Takes an `Incumbent`, the best plan so far, and improves it; gives a lower bound on the time of every plan. Invariants:
after `begin` there is a plan that fits, and plans only get better; the bound is true (dual.py). Without a time limit it
ends, and gives the same each time.

It begins with simple plans (each variable's fastest choice, its leanest, its first) and improves them locally
(local.py). Then the bound is raised; plans that its proof suggests are improved locally, too. Where the largest
transient blurs the bound, plans are bounded by intervals of it, as in exact.py. What is left of the time is for moves
of forests of variables (local.py) and of a few variables at a time (neighbourhoods.py).
"""

import math
from collections.abc import Sequence

import numpy as np

from alpa_cfp.search.dual import Dual, Part
from alpa_cfp.search.incumbent import SLACK, Incumbent
from alpa_cfp.search.limits import Deadline
from alpa_cfp.search.local import Local
from alpa_cfp.search.neighbourhoods import improve_neighbourhoods
from alpa_cfp.search.problem import SearchProblem

# The bound gets so much of the time at most.
_BOUND_SHARE = 0.6
# Parts of the plans, by their transients, are bounded by themselves if that may raise the bound by this share of the
# gap; so many at most.
_SHARE, _MOST_PARTS = 0.05, 64
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
    local = Local(problem, known.budget_bytes, deadline)

    def offer(plan: Sequence[int], byte_s: float) -> None:
        known.add(plan)
        if not deadline.is_over:
            known.add(local.improved(plan, byte_s))

    if _proved(known, bound_s):
        return bound_s
    dual_deadline = deadline.part(_BOUND_SHARE)
    found_s, byte_s = _bounded(known, Dual(problem, known.budget_bytes, offer, dual_deadline), dual_deadline)
    bound_s = max(bound_s, found_s)
    if not _proved(known, bound_s):
        _improve_forests(known, local, byte_s, deadline)
        improve_neighbourhoods(known, bound_s, deadline)
    return bound_s


def _bounded(known: Incumbent, dual: Dual, deadline: Deadline) -> tuple[float, float]:
    """The bound, and the price of a byte that gives the best one."""
    problem = known.pruned.problem
    peaks = np.unique(np.concatenate([v.transient_bytes for v in problem.variables]))
    if not math.isfinite(known.budget_bytes):
        peaks = peaks[-1:]
    # Each plan has at least this transient.
    least = max(float(v.transient_bytes.min()) for v in problem.variables)
    most = known.budget_bytes - sum(float(v.summed_bytes.min()) for v in problem.variables)
    peaks = peaks[(peaks >= least) & (peaks <= most)] if math.isfinite(most) else peaks
    parts = [Part(float(peaks[0]), float(peaks[-1]))]
    while not deadline.is_over:
        parts = sorted(parts, key=lambda part: part.bound_s)
        part, *others = parts
        if _proved(known, part.bound_s):
            break
        blur_s = part.price * (part.high - part.low)
        # Where bytes have no price, plans fit if they are charged for the least transient, but they may not in full.
        blurred = part.low < part.high and (not part.price or blur_s > _SHARE * (known.time_s - part.bound_s))
        narrow = not blurred or len(parts) >= _MOST_PARTS
        if part.is_settled and narrow:
            break
        if part.stage >= 3 and not narrow:
            inside = peaks[(peaks >= part.low) & (peaks <= part.high)]
            middle = len(inside) // 2
            lower = part.within(part.low, float(inside[middle - 1]))
            upper = part.within(float(inside[middle]), part.high)
            parts = [lower, upper, *others]
            continue
        parts = [dual.turn(part, known.time_s), *others]
    part = min(parts, key=lambda part: part.bound_s)
    return part.bound_s, part.price


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


def _proved(known: Incumbent, bound_s: float) -> bool:
    return known.time_s <= bound_s + SLACK * abs(bound_s)


def _simple(problem: SearchProblem) -> list[tuple[int, ...]]:
    """The plans of each variable's fastest, leanest and first choice."""
    fastest = tuple(int(v.time_s.argmin()) for v in problem.variables)
    leanest = tuple(int(np.lexsort((v.time_s, v.summed_bytes + v.transient_bytes))[0]) for v in problem.variables)
    first = tuple(0 for _ in problem.variables)
    return list(dict.fromkeys((fastest, leanest, first)))
