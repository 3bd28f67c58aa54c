"""Chooses the variables to branch on, and the order in which the others are eliminated.

Takes a `SearchProblem`; gives an `Order`: the variables to branch on, called hubs, and a separator (the later variables
that it is joined to) for each other variable. Invariant: the joint choices of all hubs, the *cases*, are at most
`_MOST_CASES`.

A variable that is joined to much of the model (a tied embedding, a mask that all layers take, the far end of a skip) is
in the separators of most of the elimination, and each of its choices needs a frontier of its own there. Once its choice
is fixed, the variable is eliminated from all of them, each case has its own bound, and most cases are cut before
anything is eliminated (conditioning: Pearl, "Probabilistic Reasoning in Intelligent Systems" (1988), 4.3.2).
"""

import heapq
import math
from dataclasses import dataclass

from alpa_cfp.search.limits import MOST_DIMS, Deadline, OutOfSpace, volume
from alpa_cfp.search.problem import SearchProblem

Separators = dict[int, frozenset[int]]
# How many times larger tables may be if that makes the elimination a sweep.
_WORTH_A_SWEEP = 4
# A variable with this many neighbours is eliminated late in any case, and counting its fill is quadratic.
_MANY = 9
# A hub is in at least so many separators, and in at least this share of all.
_CARRIED, _SHARE = 3, 0.5
# More cases than these are too many to bound each.
_MOST_CASES, _MOST_HUBS = 256, 8


@dataclass(frozen=True, slots=True)
class Order:
    """`hubs`, ascending; `separators` of the other variables, in elimination order."""

    hubs: tuple[int, ...]
    separators: Separators


def elimination_order(problem: SearchProblem, deadline: Deadline) -> Order:
    """Chooses hubs, the longest carried first, and eliminates the others by minimum degree, then minimum fill.

    Two orders are tried: freely by minimum degree, and as a sweep, in which nearly every bucket has one child.
    Frontiers of several children multiply when they meet, so the sweep is taken unless its tables are much larger.
    On a chain both walk from one end to the other, so a partial plan is a prefix of the model.
    """
    sizes = [variable.choices for variable in problem.variables]
    hubs: set[int] = set()
    cases = 1
    while True:
        sweep, free = (_order(problem, sizes, hubs, deadline, sweep=sweep) for sweep in (True, False))
        if free is None:
            raise OutOfSpace(math.inf)
        separators = free
        if sweep is not None:
            volumes = [sum(volume(v, sep, sizes) for v, sep in found.items()) for found in (sweep, free)]
            separators = sweep if volumes[0] <= _WORTH_A_SWEEP * volumes[1] else free
        carried = dict.fromkeys(range(len(sizes)), 0)
        for separator in separators.values():
            for v in separator:
                carried[v] += 1
        least = max(_CARRIED, _SHARE * len(separators))
        able = [v for v, count in carried.items() if count >= least and cases * sizes[v] <= _MOST_CASES]
        if not able:
            return Order(tuple(sorted(hubs)), separators)
        hub = min(able, key=lambda v: (-carried[v], sizes[v], v))
        hubs.add(hub)
        cases *= sizes[hub]


def _order(
    problem: SearchProblem, sizes: list[int], hubs: set[int], deadline: Deadline, *, sweep: bool
) -> Separators | None:
    """Eliminates all but `hubs` by (degree, fill, position); gives each variable's separator, in that order.

    A `sweep` continues with a neighbour of the last one, as long as there is one, by (separator states, position). So
    the separators hold variables of few choices rather than of many. None: some table has more dims than an array can,
    even if the most hubs that there may be were taken out.
    """
    around: list[set[int]] = [set() for _ in sizes]
    for first, second in problem.ends:
        # What has one choice is known: it joins nothing.
        if first not in hubs and second not in hubs and min(sizes[first], sizes[second]) > 1:
            around[first].add(second)
            around[second].add(first)

    def rank(v: int) -> tuple[int, int, int]:
        if sweep:
            return math.prod(sizes[u] for u in around[v]), 0, v
        near = sorted(around[v])
        if len(near) >= _MANY:
            return len(near), len(near) ** 2, v
        missing = sum(b not in around[a] for i, a in enumerate(near) for b in near[i + 1 :])
        return len(near), missing, v

    queue = [rank(v) for v in range(len(sizes)) if v not in hubs]
    heapq.heapify(queue)
    separators: Separators = {}
    near: set[int] = set()
    while queue:
        if sweep and near:
            v = min(map(rank, near))[-1]
        else:
            entry = heapq.heappop(queue)
            v = entry[-1]
            if v in separators:
                continue
            current = rank(v)
            if current != entry:  # its neighbourhood changed since it was queued
                heapq.heappush(queue, current)
                continue
        deadline.check()
        near = around[v]
        most = MOST_DIMS + _MOST_HUBS - len(hubs)
        if len(near) > most:
            return None
        separators[v] = frozenset(near)
        for a in near:
            around[a] |= near
            around[a] -= {a, v}
        for a in sorted(near):
            heapq.heappush(queue, rank(a))
    return separators
