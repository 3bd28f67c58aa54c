"""The exact search: the cheapest plan that fits, by branch and bound over hubs' choices and the largest transient.

Takes a `SearchProblem`, a budget in bytes and limits of time and memory; gives a plan. Invariants: there is always a
plan if any fits; the same input gives the same plan, unless the time limit was met; no plan that fits is faster, or, if
a limit was met, none is faster by more than `Solution.gap_s`.

The memory that the exact search needs is computed before it is allocated (limits.py). If that is more than the limit,
or if the time is over, the plan is that of approximate.py, with its bound.

Choices that the best plan does not need are left out first (prune.py). The search branches on each *case*, a choice for
every hub (order.py), and on the largest transient, one of finitely many numbers. An interval of these is bounded for
many cases at once (bounds.py, multiplier.py). The node with the least bound comes first. Either its interval is split
into two, for all its cases; or, once splitting would sharpen the bound by less than the remaining gap, its best case is
solved by the dynamic programme of eliminate.py. Without a budget there is one interval, and bytes do not count.
"""

import heapq
import itertools
import logging
import math
from dataclasses import dataclass, field, replace

import numpy as np

from alpa_cfp.search.approximate import SLACK, Incumbent, approximate, begin, trivial_bound_s
from alpa_cfp.search.bounds import Interval, Weights, downward, upward
from alpa_cfp.search.eliminate import eliminate
from alpa_cfp.search.errors import InvalidProblemError, MemoryBudgetError, NoPlanError
from alpa_cfp.search.limits import MEMORY_BYTES, Deadline, OutOfSpace, OutOfTime, Stopped, work
from alpa_cfp.search.multiplier import relax, relax_quickly
from alpa_cfp.search.problem import Array, Index, SearchProblem, Solution
from alpa_cfp.search.prune import Flags, prune
from alpa_cfp.search.tree import Tree, elimination_tree

_LOG = logging.getLogger(__name__)
# An interval is narrow when its transients blur its bound by at most this share of the time.
_NARROW = 1e-4
# An interval is solved rather than split when its transients blur its bound by less than this share of the remaining
# gap.
_SHARE = 0.5
# Labels per bucket: in the first heuristic runs (at least, and for each state of the largest separator), in the run
# after them if the plan is not close to its bound, and in the first exact run; each next exact run is `_WIDER` times
# wider.
_FIRST_WIDTH, _FIRST_PER_STATE, _SECOND_WIDTH = 32, 2, 1024
_EXACT_WIDTH = 8192
_WIDER = 8
# Runs are bounded with the best multiplier and with two around it, which bound labels better that are far from the best
# plan.
_AROUND = (0.95, 1.0, 1.05)
# A first guess of how far the best plan of an interval is above its bound, relative to it: the tighter the limit, the
# smaller the frontiers.
_GUESS = 3e-4
# If one pass of bounds visits more entries than this (a second or so), the exact search may meet its time limit without
# a good plan: then approximate.py gets this share of the time first.
_HEAVY, _FIRST_SHARE = 10**8, 0.5


def search(
    problem: SearchProblem,
    budget_bytes: int | None,
    *,
    time_limit_s: float = math.inf,
    memory_limit_bytes: int = MEMORY_BYTES,
) -> Solution:
    """Finds the cheapest plan whose memory is at most `budget_bytes` (None: any).

    With a budget, of plans of equal time one of least memory is taken; which of several that are equal in both is
    arbitrary, and the same each time. Times closer than rounding (1e-12 of the total) count as equal.

    After `time_limit_s` seconds, or where the exact search would hold more than `memory_limit_bytes` beside the problem
    and what is linear in it, the result is the best plan so far, or that of approximate.py. A warning then says by how
    much at most it could be beaten (`Solution.gap_s`; 0 if it was proved to be the best).

    Raises:
        NoPlanError: A variable has excluded choices only.
        MemoryBudgetError: No plan fits.
        InvalidProblemError: A budget or limit is negative.
    """
    if budget_bytes is not None and budget_bytes < 0:
        raise InvalidProblemError(f"budget_bytes={budget_bytes}: a budget is not negative; None means no limit")
    if not time_limit_s >= 0:
        raise InvalidProblemError(f"time_limit_s={time_limit_s}: a time limit is not negative")
    if memory_limit_bytes < 0:
        raise InvalidProblemError(f"memory_limit_bytes={memory_limit_bytes}: a limit is not negative")
    if not problem.variables:
        return problem.solution(())
    hopeless = tuple(variable.name for variable in problem.variables if not np.isfinite(variable.time_s).any())
    if hopeless:
        raise NoPlanError(hopeless)
    deadline = Deadline(time_limit_s, memory_limit_bytes)
    counted = budget_bytes is not None
    pruned = prune(problem, deadline, memory=counted)
    if counted:
        _check_budget(problem, pruned.given(pruned.problem.leanest()), budget_bytes)
    known = Incumbent(problem, pruned, float(budget_bytes) if counted else math.inf)
    # Not used by the exact search, whose result must not depend on whether there is a limit.
    spare = replace(known)
    bound_s, stopped, run = trivial_bound_s(pruned.problem), None, None
    try:
        begin(spare, deadline)
        deadline.check()
        tree = elimination_tree(pruned.problem, deadline, memory=counted)
        if math.isfinite(time_limit_s) and work(tree) > _HEAVY:
            bound_s = approximate(spare, deadline.part(_FIRST_SHARE))
        run = _Search(tree, _peaks(tree), known, float(budget_bytes) if counted else 0.0, deadline)
        run.run()
        bound_s = math.inf
    except (Stopped, MemoryError) as error:
        stopped = error
    if stopped is not None:
        if not isinstance(stopped, OutOfTime):
            bound_s = approximate(spare, deadline)
        known.include(spare.plan)
        if run is not None:
            bound_s = max(bound_s, run.proved_s)
    plan = known.plan
    assert plan is not None  # that of least memory fits
    gap_s = plan.time_s - bound_s
    plan = replace(plan, gap_s=gap_s if gap_s > SLACK * abs(plan.time_s) else 0.0)
    _LOG.info(
        "search: %d variables in %.3f s (%d of %d choices, %d cases, %d runs, largest frontier %d)",
        len(problem.variables),
        deadline.passed_s,
        sum(variable.choices for variable in pruned.problem.variables),
        sum(variable.choices for variable in problem.variables),
        0 if run is None else len(run.tree.cases),
        0 if run is None else run.runs,
        0 if run is None else run.largest,
    )
    if stopped is not None:
        _LOG.log(
            logging.WARNING if plan.gap_s else logging.INFO,
            "search: stopped after %.1f s%s; the best takes %.6g s and could be beaten by at most %.3g s (%.3g%%)",
            deadline.passed_s,
            _why(stopped, memory_limit_bytes),
            plan.time_s,
            plan.gap_s,
            100 * plan.gap_s / abs(plan.time_s) if plan.time_s else math.inf,
        )
    return plan


def _check_budget(problem: SearchProblem, leanest: tuple[int, ...], budget_bytes: int) -> None:
    """Raises MemoryBudgetError if even the plan of least memory does not fit."""
    memory = problem.memory(leanest)
    if memory.total > budget_bytes:
        parts = (memory.state, memory.saved, memory.transient)
        raise MemoryBudgetError(memory.total, budget_bytes, parts, problem.largest(leanest))


def _why(stopped: BaseException, limit_bytes: int) -> str:
    """The reason why a search stopped, if that was not the time limit."""
    if isinstance(stopped, OutOfTime):
        return ""
    size = "more memory than there is"
    if isinstance(stopped, OutOfSpace) and math.isfinite(stopped.size_bytes):
        size = f"{stopped.size_bytes:.3g} bytes"
    return f", because the exact search needs {size}, where {limit_bytes:,} are allowed"


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """An interval of peaks [low, high] with each case's bound (inf: irrelevant) and multiplier."""

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

    def only(self, wanted: Flags) -> "_Node":
        """The node with these cases alone (a mask)."""
        return replace(self, bound_s=np.where(wanted, self.bound_s, np.inf))


@dataclass(slots=True)
class _Search:
    """Finds the best plan for `known`: intervals of `peaks`, the most promising first.

    `proved_s` is a lower bound on the time of all plans; `runs` and `largest` (frontier) are for the log.
    """

    tree: Tree
    peaks: Array
    known: Incumbent
    budget_bytes: float
    deadline: Deadline
    proved_s: float = -math.inf
    runs: int = 0
    largest: int = 0
    _halves: dict[tuple[object, ...], tuple[_Node, ...]] = field(default_factory=dict)

    def run(self) -> None:
        """Until no interval and case is left that could hold a better plan."""
        root = self._root()
        self.proved_s = root.least_s
        # A good plan early keeps everything after it small. So first go down to the most promising narrow interval of
        # the case that seems best, and then of the one that seems best once the others are bounded well.
        tried: set[int] = set()
        while math.isfinite(root.least_s) and root.best not in tried:
            tried.add(root.best)
            if self._dive(root):
                root = root.only(np.arange(len(root.bound_s)) != root.best)
            hopeful = np.flatnonzero(np.isfinite(root.bound_s) & (root.bound_s <= self._limit_s))
            if not set(hopeful.tolist()) <= tried:
                root = self._bounded(root, hopeful)

        serial = itertools.count()
        queue = [(root.least_s, next(serial), root)] if math.isfinite(root.least_s) else []
        while queue:
            bound, _, node = heapq.heappop(queue)
            self.proved_s = max(self.proved_s, bound)
            if bound > self._limit_s:
                return
            node = node.only(node.bound_s <= self._limit_s)
            if self._blurred(node, _SHARE * (self.known.time_s - bound) if self.known.plan else 0.0):
                left = self._split(node)
            else:
                width = _EXACT_WIDTH
                while not self._solve(node, width):
                    width *= _WIDER
                left = (node.only(np.arange(len(node.bound_s)) != node.best),)
            for part in left:
                if math.isfinite(part.least_s):
                    heapq.heappush(queue, (part.least_s, next(serial), part))

    def _dive(self, root: _Node) -> bool:
        """Solves the best case's most promising narrow interval heuristically; returns whether it was exact for all."""
        node = root.only(np.arange(len(self.tree.cases)) == root.best)
        while self._blurred(node, 0.0) and (parts := self._split(node)):
            node = min(parts, key=lambda part: (part.least_s, part.low))
        states = max(math.prod(bucket.separator_sizes) for bucket in self.tree.buckets)
        narrow, before = max(_FIRST_WIDTH, _FIRST_PER_STATE * states), self.known.time_s
        guess_s = node.least_s + _GUESS * abs(node.least_s)
        exact = False
        for within_s, width in ((guess_s, narrow), (math.inf, narrow), (math.inf, max(_SECOND_WIDTH, narrow))):
            exact = self._solve(node, width, within_s) and self.known.time_s <= within_s
            if exact or self.known.time_s < min(before, guess_s):
                break
        return exact and (node.low, node.high) == (root.low, root.high)

    @property
    def _limit_s(self) -> float:
        """Nodes with a larger bound hold no better plan."""
        limit_s = self.known.time_s
        return limit_s + SLACK * abs(limit_s) if math.isfinite(limit_s) else math.inf

    def _interval(self, node: _Node) -> Interval:
        return Interval(float(self.peaks[node.low]), float(self.peaks[node.high]))

    def _evaluate(self, choices: tuple[int, ...]) -> tuple[float, float]:
        plan = self.known.add(choices)
        counted = math.isfinite(self.known.budget_bytes)
        return plan.time_s, (plan.memory.state + plan.memory.saved) * counted

    def _root(self) -> _Node:
        """The node of all peaks and cases."""
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
        """The node with bounds and multipliers computed for its own interval, and these cases alone."""
        bound_s, multiplier = np.full_like(node.bound_s, np.inf), np.zeros_like(node.multiplier)
        given = (self.tree, self._interval(node), self.budget_bytes)
        limit_s = self._limit_s
        found, multiplier[cases] = relax_quickly(*given, node.multiplier[cases], cases, limit_s, self.deadline)
        bound_s[cases] = np.maximum(found, node.bound_s[cases])
        # A multiplier of 0 means that the fastest plan fitted so far. In this interval it may not: then find another.
        free = cases[multiplier[cases] == 0]
        for case in free[np.argsort(bound_s[free], kind="stable")].tolist():
            if not math.isfinite(bound_s[case]) or bound_s[case] > self._limit_s:
                break
            relaxed = relax(*given, self._evaluate, case, self.deadline)
            bound_s[case], multiplier[case] = max(bound_s[case], relaxed.bound_s), relaxed.multiplier
            if relaxed.multiplier:  # a good first guess for all other cases
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
        if (
            multiplier == 0
        ):  # its fastest plan fits if charged for the least transient: good if one as fast fits in full
            return self.known.time_s > bound + SLACK * abs(bound)
        blur = multiplier * float(self.peaks[node.high] - self.peaks[node.low])
        return blur > max(tolerance_s, _NARROW * abs(bound))

    def _solve(self, node: _Node, width: int, within_s: float = math.inf) -> bool:
        """Runs the dynamic programme on the node's best case, for plans that take at most `within_s`.

        Returns whether it was exact.
        """
        case = node.best
        multiplier = float(node.multiplier[case])
        multipliers = [0.0, *(multiplier * factor for factor in _AROUND)] if multiplier else [0.0]
        up = upward(self.tree, self._interval(node), Weights.of(multipliers, case), self.deadline)
        limit_s = min(self.known.time_s, within_s)
        found = eliminate(up, downward(up), limit_s, self.budget_bytes, width=width)
        if found.choices is not None:
            self.known.add(found.choices)
        self.runs += 1
        self.largest = max(self.largest, found.largest)
        return not found.truncated


def _peaks(tree: Tree) -> Array:
    """All transients that occur, ascending."""
    return np.unique(np.concatenate([flat.transient_bytes.ravel() for flat in (tree.flat, tree.flat_by_case)]))
