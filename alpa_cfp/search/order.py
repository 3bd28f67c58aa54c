"""The order in which variables are eliminated, and the tree of buckets that it makes.

Takes a `SearchProblem`; gives back a `Tree` of `Bucket`s, in elimination order. A bucket holds the tables that mention
its variable and no earlier one; its *scope* is the variable and its *separator* (the later variables that it is joined
to), sorted by elimination position, so that tables and messages broadcast into each other by reshaping, never by
transposing. Invariants: a child's separator is part of its parent's scope; the last bucket is the root of all (a bucket
with an empty separator, the end of a component, hangs under the next one).

Bucket elimination: Dechter, "Bucket elimination: a unifying framework for reasoning" (1999). The order is minimum
degree, then minimum fill. On a chain it walks from one end to the other, so a partial plan is a prefix of the model.
"""

import heapq
import math
from dataclasses import dataclass

import numpy as np

from alpa_cfp.search.problem import Array, SearchProblem

# How much larger tables may be if that makes the elimination a sweep.
_WORTH_A_SWEEP = 4
# A variable with so many neighbours is a hub: nearly everything else goes first.
_HUB = 9


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Costs over a bucket's scope, of size 1 in the dims that they do not depend on: seconds, summed and peak bytes."""

    time_s: Array
    summed_bytes: Array
    transient_bytes: Array


@dataclass(frozen=True, slots=True)
class Bucket:
    """One eliminated variable. `tables` index `Tree.tables`; `scope` and `sizes` start with the variable itself.

    `children` are bucket numbers. `into_parent` is the shape that a message of this bucket takes in the parent's scope;
    `projection` are the strides that turn coordinates of the parent's scope into this bucket's separator state.
    """

    scope: tuple[int, ...]
    sizes: tuple[int, ...]
    tables: tuple[int, ...]
    children: tuple[int, ...]
    into_parent: tuple[int, ...]
    projection: tuple[int, ...]

    @property
    def separator_sizes(self) -> tuple[int, ...]:
        """How many choices each separator variable has."""
        return self.sizes[1:]


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """All buckets in elimination order, and the distinct tables (repeated layers share theirs); `flat`: in a row."""

    buckets: tuple[Bucket, ...]
    tables: tuple[Table, ...]
    flat: Table


def elimination_tree(problem: SearchProblem, *, memory: bool) -> Tree:
    """Builds the bucket tree; without `memory` all bytes are left out (zero), so equal times tie.

    Two orders are tried: freely by minimum degree, and as a sweep, in which nearly every bucket has one child.
    Frontiers of several children multiply when they meet, so the sweep is taken unless its tables are much larger.
    """
    sizes = [variable.choices for variable in problem.variables]
    sweep, free = (_order(problem, sizes, sweep=sweep) for sweep in (True, False))
    sweep_volume, free_volume = (sum(_volume(v, sep, sizes) for v, sep in found.items()) for found in (sweep, free))
    separators = sweep if sweep_volume <= _WORTH_A_SWEEP * free_volume else free
    position = {variable: index for index, variable in enumerate(separators)}
    members: list[list[tuple[tuple[int, ...], Table]]] = [[] for _ in separators]
    for index, variable in enumerate(problem.variables):
        summed = variable.state_bytes + variable.saved_bytes
        members[position[index]].append(((index,), Table(variable.time_s, summed, variable.transient_bytes)))
    for edge, (first, second) in zip(problem.edges, problem.ends, strict=True):
        table = Table(edge.time_s, edge.state_bytes, edge.transient_bytes)
        if position[first] > position[second]:
            first, second = second, first
            table = Table(table.time_s.T, table.summed_bytes.T, table.transient_bytes.T)
        members[position[first]].append(((first, second), table))

    scopes = [(v, *sorted(separator, key=position.__getitem__)) for v, separator in separators.items()]
    parents = [position[scope[1]] if len(scope) > 1 else index + 1 for index, scope in enumerate(scopes)]
    children: list[list[int]] = [[] for _ in scopes]
    for index, parent in enumerate(parents[:-1]):
        children[parent].append(index)
    known: dict[tuple[object, ...], int] = {}
    tables: list[Table] = []
    buckets = []
    for index, scope in enumerate(scopes):
        numbers = []
        for table in _merged(scope, sizes, members[index], memory):
            key = (
                table.time_s.shape,
                *(part.tobytes() for part in (table.time_s, table.summed_bytes, table.transient_bytes)),
            )
            if known.setdefault(key, len(tables)) == len(tables):
                tables.append(table)
            numbers.append(known[key])
        above = scopes[parents[index]] if index + 1 < len(scopes) else ()
        strides = dict(zip(scope[1:], _strides([sizes[v] for v in scope[1:]]), strict=True))
        buckets.append(
            Bucket(
                scope,
                tuple(sizes[v] for v in scope),
                tuple(numbers),
                tuple(children[index]),
                tuple(sizes[v] if v in strides else 1 for v in above),
                tuple(strides.get(v, 0) for v in above),
            )
        )
    flat = Table(
        np.concatenate([table.time_s.ravel() for table in tables]),
        np.concatenate([table.summed_bytes.ravel() for table in tables]),
        np.concatenate([table.transient_bytes.ravel() for table in tables]),
    )
    return Tree(tuple(buckets), tuple(tables), flat)


def _order(problem: SearchProblem, sizes: list[int], *, sweep: bool) -> dict[int, frozenset[int]]:
    """Eliminates by (degree, fill, position); gives each variable's separator, in that order.

    A `sweep` goes on with a neighbour of the last one, as long as there is one, by (separator states, position): so a
    variable of few choices is carried along rather than one of many.
    """
    around: list[set[int]] = [set() for _ in sizes]
    for first, second in problem.ends:
        around[first].add(second)
        around[second].add(first)

    def rank(v: int) -> tuple[int, int, int]:
        if sweep:
            return math.prod(sizes[u] for u in around[v]), 0, v
        near = sorted(around[v])
        if len(near) >= _HUB:  # it is not next for long; counting is quadratic
            return len(near), len(near) ** 2, v
        missing = sum(b not in around[a] for i, a in enumerate(near) for b in near[i + 1 :])
        return len(near), missing, v

    queue = [rank(v) for v in range(len(sizes))]
    heapq.heapify(queue)
    separators: dict[int, frozenset[int]] = {}
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
        near = around[v]
        separators[v] = frozenset(near)
        for a in near:
            around[a] |= near
            around[a] -= {a, v}
        for a in sorted(near):
            heapq.heappush(queue, rank(a))
    return separators


def _volume(v: int, separator: set[int] | frozenset[int], sizes: list[int]) -> int:
    return math.prod(sizes[u] for u in separator) * sizes[v]


def _strides(sizes: list[int]) -> list[int]:
    return [math.prod(sizes[index + 1 :]) for index in range(len(sizes))]


def _merged(
    scope: tuple[int, ...], sizes: list[int], members: list[tuple[tuple[int, ...], Table]], memory: bool
) -> list[Table]:
    """A bucket's tables in its scope's shape, one for the same dims; the variable's joins the first edge's."""
    by_dims: dict[tuple[int, ...], Table] = {}
    for dims, table in members:
        shape = tuple(sizes[v] if v in dims else 1 for v in scope)
        shaped = Table(
            table.time_s.reshape(shape),
            table.summed_bytes.reshape(shape) * memory,
            table.transient_bytes.reshape(shape) * memory,
        )
        by_dims[dims] = _both(by_dims[dims], shaped) if dims in by_dims else shaped
    own = by_dims.pop(scope[:1])
    if not by_dims:
        return [own]
    first = next(iter(by_dims))
    by_dims[first] = _both(own, by_dims[first])
    return list(by_dims.values())


def _both(a: Table, b: Table) -> Table:
    return Table(a.time_s + b.time_s, a.summed_bytes + b.summed_bytes, np.maximum(a.transient_bytes, b.transient_bytes))
