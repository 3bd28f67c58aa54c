"""The exact search: branch and bound over hubs' choices and the largest transient.

Takes a bucket tree, a budget in bytes and limits of time and memory; improves the best plan so far until it is proved
to be the best. Invariants: `proved_s` is at most the time of every plan; the same input gives the same plan, unless a
limit is met, which raises `Stopped`.

The search branches on each *case*, a choice for every hub (order.py), and on the largest transient, one of finitely
many numbers. An interval of these is bounded for many cases at once (bounds.py, multiplier.py). The node with the least
bound comes first. Either its interval is split into two, for all its cases; or, once splitting would sharpen the bound
by less than the remaining gap, its best case is solved by the dynamic programme of eliminate.py.
"""

import heapq
import itertools
import math
from dataclasses import dataclass, field, replace

import numpy as np

from alpa_cfp.search.bounds import Interval, Weights, downward, upward
from alpa_cfp.search.eliminate import eliminate
from alpa_cfp.search.incumbent import SLACK, Incumbent
from alpa_cfp.search.limits import Deadline
from alpa_cfp.search.multiplier import relax, relax_quickly
from alpa_cfp.search.problem import Array, Index
from alpa_cfp.search.prune import Flags
from alpa_cfp.search.tree import Tree

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
class ExactSearch:
    """Finds the best plan for `known`: intervals of `peaks`, the most promising first.

    `proved_s` is a lower bound on the time of all plans; `runs` and `largest` (frontier) are for the log. `peaks` are
    all transients that occur, ascending.
    """

    tree: Tree
    known: Incumbent
    deadline: Deadline
    proved_s: float = -math.inf
    runs: int = 0
    largest: int = 0
    peaks: Array = field(init=False)
    _halves: dict[tuple[object, ...], tuple[_Node, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.peaks = _peaks(self.tree)

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
        return plan.time_s, plan.memory.state + plan.memory.saved

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
        given = (self.tree, self._interval(node), self.known.budget_bytes)
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
        found = eliminate(up, downward(up), limit_s, self.known.budget_bytes, width=width)
        if found.choices is not None:
            self.known.add(found.choices)
        self.runs += 1
        self.largest = max(self.largest, found.largest)
        return not found.truncated


def _peaks(tree: Tree) -> Array:
    """All transients that occur, ascending."""
    return np.unique(np.concatenate([flat.transient_bytes.ravel() for flat in (tree.flat, tree.flat_by_case)]))
