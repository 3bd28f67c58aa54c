"""The exact search: the cheapest plans that fit, by branch and bound over the largest transient.

Takes a `SearchProblem`, a budget in bytes and how many plans are wanted; gives back the plans in order. Invariant: no
plan that fits is faster than the last of a full answer and missing from it, and the same input gives the same plans.

The largest transient of a plan is one of finitely many numbers. An interval of them is bounded (bounds.py,
multiplier.py), and, where the bound does not exclude it, either split or, once the interval is so narrow that splitting
would sharpen the bound by less than the gap that is left, solved by the dynamic programme of eliminate.py. Without a
budget there is one interval and bytes do not count.
"""

import functools
import heapq
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from alpa_cfp.search.bounds import Interval, Weights, cheapest_choices, downward, upward
from alpa_cfp.search.eliminate import eliminate
from alpa_cfp.search.errors import NoPlanError, NothingFitsError, bad_problem
from alpa_cfp.search.multiplier import relax, relax_quickly
from alpa_cfp.search.order import Tree, elimination_tree
from alpa_cfp.search.problem import SearchProblem, Solution

Node = tuple[float, int, int, float]  # bound, first peak, last peak, multiplier
Evaluate = Callable[[tuple[int, ...]], tuple[float, float]]
_LOG = logging.getLogger(__name__)
# An interval is narrow when its transients blur its bound by at most this share of the time.
_NARROW = 1e-4
# An interval is solved rather than split when its transients blur its bound by less than this share of the gap that is
# left.
_SHARE = 0.5
# Labels a bucket in the first, heuristic run, in the first exact one, and how much wider each next one is.
_FIRST_WIDTH = 32
_EXACT_WIDTH = 1024
_WIDER = 8
# Runs bound with the best multiplier and with two around it, which bound labels better that are far from the best plan.
_AROUND = (0.95, 1.0, 1.05)
# A bound this little above the best known time may be rounding.
_SLACK = 1e-11


@dataclass(slots=True)
class _Known:
    """The best plans met so far that fit."""

    problem: SearchProblem
    budget_bytes: float
    best: int
    plans: dict[tuple[int, ...], Solution] = field(default_factory=dict)
    largest: int = 0
    labels: int = 0
    runs: int = 0

    def add(self, choices: tuple[int, ...]) -> Solution:
        """Evaluates a plan and keeps it if it fits and is among the best."""
        found = self.problem.solution(choices)
        if found.memory.total <= self.budget_bytes and math.isfinite(found.time_s):
            self.plans[choices] = found
            self.plans = {plan.choices: plan for plan in self.ranked()}
        return found

    def ranked(self) -> tuple[Solution, ...]:
        """The best, cheapest first; of equal times the smaller memory, then the smaller choices, come first."""
        return tuple(sorted(self.plans.values(), key=lambda s: (s.time_s, s.memory.total, s.choices))[: self.best])

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


def search(problem: SearchProblem, budget_bytes: int | None, *, best: int = 1) -> tuple[Solution, ...]:
    """Finds the `best` cheapest plans whose memory is at most `budget_bytes` (None: any), cheapest first.

    All plans are distinct; there are fewer if fewer fit. With a budget, plans of equal time are in order of memory;
    which of several that are equal in both are given is arbitrary, and the same each time. Times closer than rounding
    (1e-12 of the total) count as equal. Raises NoPlanError if infinite times exclude all plans, NothingFitsError if
    none fits.
    """
    if best < 1:
        raise bad_problem(f"best={best}: at least one plan must be asked for")
    if budget_bytes is not None and budget_bytes < 0:
        raise bad_problem(f"budget_bytes={budget_bytes}: a budget is not negative; None means no limit")
    if not problem.variables:
        return (problem.solution(()),)
    began = time.perf_counter()
    tree = elimination_tree(problem, memory=budget_bytes is not None)
    peaks = _peaks(tree)
    known = _Known(problem, math.inf if budget_bytes is None else budget_bytes, best)
    if len(peaks):
        _branch(tree, peaks, known, 0.0 if budget_bytes is None else float(budget_bytes))
    if not known.plans:
        if budget_bytes is None:
            raise NoPlanError
        raise _nothing_fits(problem, tree, peaks, budget_bytes)
    _LOG.info(
        "search: %d variables, %d plans in %.3f s (%d runs, largest frontier %d)",
        len(problem.variables),
        len(known.plans),
        time.perf_counter() - began,
        known.runs,
        known.largest,
    )
    return known.ranked()


def _branch(tree: Tree, peaks: np.ndarray, known: _Known, budget_bytes: float) -> None:
    """Fills `known` with the best plans: intervals of `peaks`, most promising first."""

    def interval(low: int, high: int) -> Interval:
        return Interval(float(peaks[low]), float(peaks[high]))

    def evaluate(choices: tuple[int, ...]) -> tuple[float, float]:
        plan = known.add(choices)
        counted = math.isfinite(known.budget_bytes)
        return plan.time_s, (plan.memory.state + plan.memory.saved) * counted

    @functools.cache
    def halves(node: Node) -> tuple[Node, ...]:
        bound, low, high, multiplier = node
        middle = (low + high) // 2
        parts = []
        for part in ((low, middle), (middle + 1, high)):
            relaxed = relax_quickly(tree, interval(*part), budget_bytes, multiplier)
            if math.isfinite(relaxed.bound_s):
                parts.append((max(bound, relaxed.bound_s), *part, relaxed.multiplier))
        return tuple(parts)

    def blurred(node: Node, tolerance_s: float) -> bool:
        """Whether splitting the interval may sharpen its bound by more than the tolerance."""
        bound, low, high, multiplier = node
        if low == high:
            return False
        if multiplier == 0:  # its fastest plan fits if charged for the least transient: fine if one so fast truly fits
            return known.best_s > bound + _SLACK * abs(bound)
        return multiplier * float(peaks[high] - peaks[low]) > max(tolerance_s, _NARROW * abs(bound))

    relaxed = relax(tree, interval(0, len(peaks) - 1), budget_bytes, evaluate)
    if math.isinf(relaxed.bound_s):
        return
    root: Node = (relaxed.bound_s, 0, len(peaks) - 1, relaxed.multiplier)
    # A good plan early keeps everything after it small, so first down to the most promising narrow interval.
    node = root
    while blurred(node, 0.0) and (parts := halves(node)):
        node = min(parts)
    _run(tree, interval(*node[1:3]), node[3], known, budget_bytes, _FIRST_WIDTH)

    queue: list[Node] = [root]
    while queue:
        node = heapq.heappop(queue)
        if node[0] > known.limit_s + _SLACK * abs(known.limit_s):
            return
        if blurred(node, _SHARE * (known.worst_s - node[0]) if known.plans else 0.0):
            for half in halves(node):
                heapq.heappush(queue, half)
        else:
            _solve(tree, interval(*node[1:3]), node[3], known, budget_bytes)


def _solve(tree: Tree, interval: Interval, multiplier: float, known: _Known, budget_bytes: float) -> None:
    """Adds the interval's best plans, exactly: ever wider runs, each within the time of the best plans known."""
    width = _EXACT_WIDTH
    while not _run(tree, interval, multiplier, known, budget_bytes, width):
        width *= _WIDER


def _run(tree: Tree, interval: Interval, multiplier: float, known: _Known, budget_bytes: float, width: int) -> bool:
    """One run of the dynamic programme; gives whether it was exact."""
    multipliers = [0.0, *(multiplier * factor for factor in _AROUND)] if multiplier else [0.0]
    up = upward(tree, interval, Weights.of(multipliers))
    found = eliminate(up, downward(up), known.limit_s, budget_bytes, best=known.best, width=width)
    for choices in found.choices:
        known.add(choices)
    known.largest, known.labels, known.runs = (
        max(known.largest, found.largest),
        known.labels + found.labels,
        known.runs + 1,
    )
    return not found.truncated


def _peaks(tree: Tree) -> np.ndarray:
    """All transients that occur in entries that are not excluded, ascending."""
    sizes = [np.unique(table.transient_bytes[np.isfinite(table.time_s)]) for table in tree.tables]
    return np.unique(np.concatenate(sizes)) if sizes else np.zeros(0)


def _nothing_fits(problem: SearchProblem, tree: Tree, peaks: np.ndarray, budget_bytes: int) -> Exception:
    """The error for a problem of which no plan fits, with the least memory of any plan (exact)."""
    leanest: Solution | None = None
    queue: list[tuple[float, int, int]] = [(0.0, 0, len(peaks) - 1)] if len(peaks) else []
    while queue:
        bound, low, high = heapq.heappop(queue)
        if leanest is not None and bound >= leanest.memory.total:
            break
        up = upward(tree, Interval(float(peaks[low]), float(peaks[high])), Weights.of([]))
        choices = cheapest_choices(up, 0)
        if choices is None:
            continue
        plan = problem.solution(choices)
        if leanest is None or plan.memory.total < leanest.memory.total:
            leanest = plan
        if low < high:
            middle = (low + high) // 2
            for part in ((low, middle), (middle + 1, high)):
                heapq.heappush(queue, (float(up.least[0] + peaks[part[0]]), *part))
    if leanest is None:
        return NoPlanError()
    memory = leanest.memory
    return NothingFitsError(
        memory.total, budget_bytes, (memory.state, memory.saved, memory.transient), problem.largest(leanest.choices)
    )
