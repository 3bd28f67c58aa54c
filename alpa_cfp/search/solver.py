"""The exact search: the cheapest plans that fit, by branch and bound over hubs' choices and the largest transient.

Takes a `SearchProblem`, a budget in bytes, how many plans are wanted and limits of time and memory; gives back the
plans in order.
Invariants: without limits, or if none was met, no plan that fits is faster than the last of a full answer and
missing from it, and the same input gives the same plans; if one was met, each plan says by how much at most it could be
beaten.

Where that would take more memory than there may be, which is worked out before any of it is allocated (sizing.py), or
more time, there are plans all the same, and a bound that says how good they are (approximate.py).

Choices that no wanted plan needs go first (prune.py). What is branched on: each *case*, a choice for every hub
(order.py), and the largest transient, one of finitely many numbers. An interval of these is bounded for many cases at
once (bounds.py, multiplier.py). Of the node with the least bound the best case is either split with all others, into
two intervals, or, once the interval is so narrow that splitting would sharpen the bound by less than the gap that is
left, solved by the dynamic programme of eliminate.py. Without a budget there is one interval and bytes do not count.
"""

import heapq
import itertools
import logging
import math
from dataclasses import dataclass, field, replace

import numpy as np

from alpa_cfp.search.approximate import Approximated, approximate, begin, plain_bound_s
from alpa_cfp.search.bounds import Interval, Weights, cheapest_choices, downward, least_prices, upward
from alpa_cfp.search.deadline import Deadline, OutOfSpace, OutOfTime, Stopped
from alpa_cfp.search.eliminate import eliminate
from alpa_cfp.search.errors import MemoryBudgetError, NoPlanError, TimeLimitError, bad_problem
from alpa_cfp.search.frontier import Index
from alpa_cfp.search.incumbents import SLACK, Incumbents
from alpa_cfp.search.multiplier import relax, relax_quickly
from alpa_cfp.search.problem import Array, SearchProblem, Solution
from alpa_cfp.search.prune import Flags, prune
from alpa_cfp.search.sizing import work
from alpa_cfp.search.tree import Tree, elimination_tree

_LOG = logging.getLogger(__name__)
# An interval is narrow when its transients blur its bound by at most this share of the time.
_NARROW = 1e-4
# An interval is solved rather than split when its transients blur its bound by less than this share of the gap that is
# left.
_SHARE = 0.5
# Labels a bucket in heuristic runs (and for each state of the largest separator), in those after them if the plan is
# not close to its bound, in the first exact one, and how much wider each next one is.
_FIRST_WIDTH, _FIRST_PER_STATE, _SECOND_WIDTH = 32, 2, 1024
_EXACT_WIDTH = 8192
_WIDER = 8
# Runs bound with the best multiplier and with two around it, which bound labels better that are far from the best plan.
_AROUND = (0.95, 1.0, 1.05)
# How far above its bound, relative to it, the best plan of an interval may be: tried before any, for the closer the
# limit, the smaller the frontiers.
_GUESS = 3e-4
# What the exact search may hold where nothing else is said.
MEMORY_BYTES = 2 * 2**30
# Where one pass of bounds looks at more entries (a second or so), the exact search may meet its time limit with little:
# so the approximate one is made first, for this share of the time at most.
_HEAVY, _FIRST_SHARE = 10**8, 0.5


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """An interval of peaks (first, last) with each case's bound (inf: of no interest) and multiplier."""

    low: int
    high: int
    bound_s: Array
    multiplier: Array

    @property
    def best(self) -> int:
        """The case with the least bound, the first of equals."""
        return int(self.bound_s.argmin())

    @property
    def least_s(self) -> float:
        """The least bound; inf if no case is left."""
        return float(self.bound_s.min())

    def of(self, wanted: Flags) -> "_Node":
        """With these cases alone (a mask)."""
        return replace(self, bound_s=np.where(wanted, self.bound_s, np.inf))


def search(
    problem: SearchProblem,
    budget_bytes: int | None,
    *,
    best: int = 1,
    time_limit_s: float | None = None,
    memory_limit_bytes: int | None = MEMORY_BYTES,
) -> tuple[Solution, ...]:
    """Finds the `best` cheapest plans whose memory is at most `budget_bytes` (None: any), cheapest first.

    All plans are distinct; there are fewer if fewer fit. With a budget, plans of equal time are in order of memory;
    which of several that are equal in both are given is arbitrary, and the same each time. Times closer than rounding
    (1e-12 of the total) count as equal.

    After `time_limit_s` seconds (None: no limit) the best plans met so far are given, which may be fewer; by
    `Solution.gap_s` seconds at most could each be beaten (0: proved to be the best), and a warning says so. The same
    where the exact search would hold more than `memory_limit_bytes` (None: no limit) beside the problem and what is
    linear in it: plans are then found by approximate.py.

    Raises NoPlanError if infinite times exclude all plans, MemoryBudgetError if none fits, TimeLimitError if none was
    met in time, or within the memory, and changing one choice of a plain plan at a time leads to none (approximate.py).
    """
    if best < 1:
        raise bad_problem(f"best={best}: at least one plan must be asked for")
    if budget_bytes is not None and budget_bytes < 0:
        raise bad_problem(f"budget_bytes={budget_bytes}: a budget is not negative; None means no limit")
    if time_limit_s is not None and not time_limit_s >= 0:
        raise bad_problem(f"time_limit_s={time_limit_s}: a time limit is not negative; None means no limit")
    if memory_limit_bytes is not None and memory_limit_bytes < 0:
        raise bad_problem(f"memory_limit_bytes={memory_limit_bytes}: a limit is not negative; None means no limit")
    if not problem.variables:
        return (problem.solution(()),)
    hopeless = tuple(variable.name for variable in problem.variables if not np.isfinite(variable.time_s).any())
    if hopeless:
        raise NoPlanError(hopeless)
    deadline = Deadline(time_limit_s, memory_bytes=memory_limit_bytes)
    counted = budget_bytes is not None
    pruned = prune(problem, best, memory=counted, deadline=deadline)
    known = Incumbents(problem, pruned, float(budget_bytes) if counted else math.inf, best)
    # Not looked at by the exact search: what that gives must not depend on whether there is a limit.
    spare = replace(known, plans={})
    proved, cases, stopped = Approximated(plain_bound_s(pruned.problem)), 0, None
    try:
        if time_limit_s is not None:
            begin(spare, deadline)
            deadline.check()
        tree = elimination_tree(pruned.problem, memory=counted, deadline=deadline)
        if time_limit_s is not None and work(tree) > _HEAVY:  # it may well not come to an end
            proved = approximate(spare, deadline.part(_FIRST_SHARE))
        cases = len(tree.cases)
        peaks = _peaks(tree)
        if len(peaks):
            _Search(tree, peaks, known, float(budget_bytes) if counted else 0.0, deadline).run()
        known.proved_s = math.inf
        if not known.plans:
            if not counted:
                raise NoPlanError
            raise _nothing_fits(known, tree, peaks, budget_bytes, deadline)
    except (Stopped, MemoryError) as error:
        stopped = error
    if stopped is not None:
        if not isinstance(stopped, OutOfTime):
            proved = approximate(spare, deadline)
        known.include(spare.plans.values())
        known.proved_s = max(known.proved_s, proved.bound_s)
        if not known.plans:
            if counted and proved.nothing_fits:
                raise _too_little(problem.solution(proved.leanest), problem, budget_bytes)
            raise TimeLimitError(deadline.passed_s, budget_bytes)
    found = tuple(replace(plan, gap_s=known.gap_s(plan)) for plan in known.ranked())
    _LOG.info(
        "search: %d variables, %d plans in %.3f s (%d of %d choices, %d cases, %d runs, largest frontier %d)",
        len(problem.variables),
        len(found),
        deadline.passed_s,
        sum(variable.choices for variable in pruned.problem.variables),
        sum(variable.choices for variable in problem.variables),
        cases,
        known.runs,
        known.largest,
    )
    if stopped is not None:
        _LOG.log(
            logging.WARNING if found[0].gap_s else logging.INFO,
            "search: stopped after %.1f s with %d of %d plans%s; the best takes %.6g s and could be beaten by at most "
            "%.3g s (%.3g%%)",
            deadline.passed_s,
            len(found),
            best,
            _why(stopped, memory_limit_bytes),
            found[0].time_s,
            found[0].gap_s,
            100 * found[0].gap_s / abs(found[0].time_s) if found[0].time_s else math.inf,
        )
    return found


def _why(stopped: BaseException, limit_bytes: int | None) -> str:
    """What stopped a search, if that was not its time."""
    if isinstance(stopped, OutOfTime):
        return ""
    size = "more memory than there is"
    if isinstance(stopped, OutOfSpace) and math.isfinite(stopped.size_bytes):
        size = f"{stopped.size_bytes:.3g} bytes"
    limit = "" if limit_bytes is None else f", where {limit_bytes:,} are allowed"
    return f", because the exact search needs {size}{limit}"


@dataclass(frozen=True, slots=True)
class _Search:
    """Fills `known` with the best plans: intervals of `peaks`, most promising first."""

    tree: Tree
    peaks: Array
    known: Incumbents
    budget_bytes: float
    deadline: Deadline
    _halves: dict[tuple[object, ...], tuple[_Node, ...]] = field(default_factory=dict)

    def run(self) -> None:
        """Until no interval and case is left that could hold a better plan."""
        known = self.known
        root = self._root()
        known.proved_s = root.least_s
        # A good plan early keeps everything after it small, so first down to the most promising narrow interval of the
        # case that seems best, and of the one that does when the others are bounded well.
        tried: set[int] = set()
        while math.isfinite(root.least_s) and root.best not in tried:
            tried.add(root.best)
            if self._dive(root):
                root = root.of(np.arange(len(root.bound_s)) != root.best)
            hopeful = np.flatnonzero(np.isfinite(root.bound_s) & (root.bound_s <= self._limit_s))
            if not set(hopeful.tolist()) <= tried:
                root = self._bounded(root, hopeful)

        serial = itertools.count()
        queue = [(root.least_s, next(serial), root)] if math.isfinite(root.least_s) else []
        while queue:
            bound, _, node = heapq.heappop(queue)
            known.proved_s = max(known.proved_s, bound)
            if bound > self._limit_s:
                return
            node = node.of(node.bound_s <= self._limit_s)
            if self._blurred(node, _SHARE * (known.worst_s - bound) if known.plans else 0.0):
                left = self._split(node)
            else:
                width = _EXACT_WIDTH
                while not self._solve(node, width):
                    width *= _WIDER
                left = (node.of(np.arange(len(node.bound_s)) != node.best),)
            for part in left:
                if math.isfinite(part.least_s):
                    heapq.heappush(queue, (part.least_s, next(serial), part))

    def _dive(self, root: _Node) -> bool:
        """A heuristic run on the best case's most promising narrow interval; gives if it was exact for all of it."""
        node = root.of(np.arange(len(self.tree.cases)) == root.best)
        while self._blurred(node, 0.0) and (parts := self._split(node)):
            node = min(parts, key=lambda part: (part.least_s, part.low))
        states = max(math.prod(bucket.separator_sizes) for bucket in self.tree.buckets)
        narrow, before = max(_FIRST_WIDTH, _FIRST_PER_STATE * states), self.known.limit_s
        guess_s = node.least_s + _GUESS * abs(node.least_s)
        exact = False
        for within_s, width in ((guess_s, narrow), (math.inf, narrow), (math.inf, max(_SECOND_WIDTH, narrow))):
            exact = self._solve(node, width, within_s) and self.known.limit_s <= within_s
            if exact or self.known.limit_s < min(before, guess_s):
                break
        return exact and (node.low, node.high) == (root.low, root.high)

    @property
    def _limit_s(self) -> float:
        """A bound above it excludes all plans that matter."""
        limit_s = self.known.limit_s
        return limit_s + SLACK * abs(limit_s) if math.isfinite(limit_s) else math.inf

    def _interval(self, node: _Node) -> Interval:
        return Interval(float(self.peaks[node.low]), float(self.peaks[node.high]))

    def _evaluate(self, choices: tuple[int, ...]) -> tuple[float, float]:
        plan = self.known.add(choices)
        counted = math.isfinite(self.known.budget_bytes)
        return plan.time_s, (plan.memory.state + plan.memory.saved) * counted

    def _root(self) -> _Node:
        """All peaks and cases."""
        count = len(self.tree.cases)
        node = _Node(0, len(self.peaks) - 1, np.full(count, -np.inf), np.zeros(count))
        return self._bounded(node, np.arange(count))

    def _split(self, node: _Node) -> tuple[_Node, ...]:
        """The interval's halves, with the cases that are left in each."""
        cases = np.flatnonzero(np.isfinite(node.bound_s))
        key = (node.low, node.high, cases.tobytes())
        if key not in self._halves:
            middle = (node.low + node.high) // 2
            halves = (replace(node, high=middle), replace(node, low=middle + 1))
            self._halves[key] = tuple(self._bounded(half, cases) for half in halves)
        return tuple(half for half in self._halves[key] if math.isfinite(half.least_s))

    def _bounded(self, node: _Node, cases: Index) -> _Node:
        """The node with the bounds and multipliers of its own interval, for these cases alone."""
        bound_s, multiplier = np.full_like(node.bound_s, np.inf), np.zeros_like(node.multiplier)
        given = (self.tree, self._interval(node), self.budget_bytes)
        limit_s = self._limit_s
        found, multiplier[cases] = relax_quickly(*given, node.multiplier[cases], cases, limit_s, self.deadline)
        bound_s[cases] = np.maximum(found, node.bound_s[cases])
        # Where the fastest plan was small enough so far, it may no longer be: then a multiplier must be found.
        free = cases[multiplier[cases] == 0]
        for case in free[np.argsort(bound_s[free], kind="stable")].tolist():
            if not math.isfinite(bound_s[case]) or bound_s[case] > self._limit_s:
                break
            relaxed = relax(*given, self._evaluate, case, self.deadline)
            bound_s[case], multiplier[case] = max(bound_s[case], relaxed.bound_s), relaxed.multiplier
            if relaxed.multiplier:  # a good guess for all others
                others = free[(free != case) & (bound_s[free] <= self._limit_s) & np.isfinite(bound_s[free])]
                guess = np.full(len(others), relaxed.multiplier)
                found, multiplier[others] = relax_quickly(*given, guess, others, -np.inf, self.deadline)
                bound_s[others] = np.maximum(bound_s[others], found)
                break
        return replace(node, bound_s=bound_s, multiplier=multiplier)

    def _blurred(self, node: _Node, tolerance_s: float) -> bool:
        """Whether splitting the interval may sharpen its least bound by more than the tolerance."""
        bound, multiplier = node.least_s, float(node.multiplier[node.best])
        if node.low == node.high:
            return False
        if multiplier == 0:  # its fastest plan fits if charged for the least transient: fine if one so fast truly fits
            return self.known.best_s > bound + SLACK * abs(bound)
        blur = multiplier * float(self.peaks[node.high] - self.peaks[node.low])
        return blur > max(tolerance_s, _NARROW * abs(bound))

    def _solve(self, node: _Node, width: int, within_s: float = math.inf) -> bool:
        """One run of the dynamic programme for the node's best case, for plans that take at most `within_s`.

        Gives whether it was exact.
        """
        case, known = node.best, self.known
        multiplier = float(node.multiplier[case])
        multipliers = [0.0, *(multiplier * factor for factor in _AROUND)] if multiplier else [0.0]
        up = upward(self.tree, self._interval(node), Weights.of(multipliers, case), self.deadline)
        found = eliminate(
            up, downward(up), min(known.limit_s, within_s), self.budget_bytes, best=known.best, width=width
        )
        for choices in found.choices:
            known.add(choices)
        known.largest, known.labels, known.runs = (
            max(known.largest, found.largest),
            known.labels + found.labels,
            known.runs + 1,
        )
        return not found.truncated


def _peaks(tree: Tree) -> Array:
    """All transients that occur in entries that are not excluded, ascending."""
    flats = (tree.flat, tree.flat_by_case)
    return np.unique(np.concatenate([flat.transient_bytes[np.isfinite(flat.time_s)] for flat in flats]))


def _nothing_fits(known: Incumbents, tree: Tree, peaks: Array, budget_bytes: int, deadline: Deadline) -> Exception:
    """The error for a problem of which no plan fits, with the least memory of any plan (exact)."""
    problem = known.problem
    leanest: Solution | None = None
    queue: list[tuple[float, int, int]] = [(0.0, 0, len(peaks) - 1)] if len(peaks) else []
    cases = np.arange(len(tree.cases))
    while queue:
        bound, low, high = heapq.heappop(queue)
        if leanest is not None and bound >= leanest.memory.total:
            break
        interval = Interval(float(peaks[low]), float(peaks[high]))
        least = least_prices(tree, interval, Weights.grid(np.zeros((len(cases), 0)), cases), deadline)
        up = upward(tree, interval, Weights.of([], int(least.argmin())), deadline)
        choices = cheapest_choices(up, 0)
        if choices is None:
            continue
        plan = problem.solution(known.pruned.given(choices))
        if leanest is None or plan.memory.total < leanest.memory.total:
            leanest = plan
        if low < high:
            middle = (low + high) // 2
            for part in ((low, middle), (middle + 1, high)):
                heapq.heappush(queue, (float(up.least[0] + peaks[part[0]]), *part))
    if leanest is None:
        return NoPlanError()
    return _too_little(leanest, problem, budget_bytes)


def _too_little(leanest: Solution, problem: SearchProblem, budget_bytes: int) -> MemoryBudgetError:
    """The error for a budget in which the plan of least memory does not fit."""
    memory = leanest.memory
    return MemoryBudgetError(
        memory.total, budget_bytes, (memory.state, memory.saved, memory.transient), problem.largest(leanest.choices)
    )
