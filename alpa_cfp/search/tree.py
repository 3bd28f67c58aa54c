"""The bucket tree: the order of elimination, and the tables that each elimination adds up.

Takes a `SearchProblem`; gives a `Tree` of `Bucket`s, in elimination order. A bucket holds the tables that mention
its variable and no earlier one; its *scope* is the variable and its *separator* (the later variables that it is joined
to), sorted by elimination position, so that tables and messages broadcast into each other by reshaping, never by
transposing. Hubs have no bucket: a *case* is a choice for each of them, and what depends on it are tables of one
variable with a leading dim of cases. Invariants: a child's separator is part of its parent's scope; the last bucket is
the root of all (a bucket with an empty separator, the end of a component, hangs under the next one).

Bucket elimination: Dechter, "Bucket elimination: a unifying framework for reasoning" (1999).
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from alpa_cfp.search.limits import Deadline, bounds_bytes, largest_bytes, tree_bytes
from alpa_cfp.search.order import elimination_order
from alpa_cfp.search.problem import Array, SearchProblem
from alpa_cfp.search.prune import digest


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Costs over a bucket's scope, of size 1 in the dims that they do not depend on: seconds, summed and peak bytes."""

    time_s: Array
    summed_bytes: Array
    transient_bytes: Array

    def reshape(self, *shape: int) -> "Table":
        """All three in another shape."""
        return Table(*(part.reshape(shape) for part in self.parts))

    @property
    def parts(self) -> tuple[Array, Array, Array]:
        """All three."""
        return self.time_s, self.summed_bytes, self.transient_bytes


@dataclass(frozen=True, slots=True)
class Bucket:
    """One eliminated variable. `tables` index `Tree.tables`; `scope` and `sizes` start with the variable itself.

    `by_case` index `Tree.by_case`. `children` are bucket numbers. `into_parent` is the shape that a message of this
    bucket takes in the parent's scope; `projection` are the strides that turn coordinates of the parent's scope into
    this bucket's separator state.
    """

    scope: tuple[int, ...]
    sizes: tuple[int, ...]
    tables: tuple[int, ...]
    by_case: tuple[int, ...]
    children: tuple[int, ...]
    into_parent: tuple[int, ...]
    projection: tuple[int, ...]

    @property
    def separator_sizes(self) -> tuple[int, ...]:
        """How many choices each separator variable has."""
        return self.sizes[1:]


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """All buckets in elimination order, and the distinct tables (repeated layers share theirs).

    `by_case` are tables of shape [case, *scope]; `flat` and `flat_by_case` ([case, ...]) have all entries in a row.
    """

    buckets: tuple[Bucket, ...]
    tables: tuple[Table, ...]
    by_case: tuple[Table, ...]
    flat: Table
    flat_by_case: Table
    hubs: tuple[int, ...]
    cases: tuple[tuple[int, ...], ...]

    def all_choices(self, chosen: Mapping[int, int], case: int) -> tuple[int, ...]:
        """The choices of all variables, from those of the buckets' and a case."""
        every = {**chosen, **dict(zip(self.hubs, self.cases[case], strict=True))}
        return tuple(every[v] for v in range(len(every)))


class _Distinct:
    """Tables by content, each kept once."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self._known: dict[bytes, int] = {}

    def number(self, table: Table) -> int:
        key = digest(*table.parts)
        if self._known.setdefault(key, len(self.tables)) == len(self.tables):
            self.tables.append(table)
        return self._known[key]


def elimination_tree(problem: SearchProblem, deadline: Deadline, *, memory: bool) -> Tree:
    """Builds the bucket tree; without `memory` all bytes are zero, so equal times tie.

    Raises Stopped if a limit is exceeded, that of memory before anything is allocated.
    """
    sizes = [variable.choices for variable in problem.variables]
    order = elimination_order(problem, deadline)
    deadline.allocate(tree_bytes(problem, order.hubs) + largest_bytes(order.separators, sizes))
    position = {variable: index for index, variable in enumerate(order.separators)}
    cases = tuple(itertools.product(*(range(sizes[hub]) for hub in order.hubs)))
    members: list[list[tuple[tuple[int, ...], Table]]] = [[] for _ in position]
    by_case: list[list[Table]] = [[] for _ in position]
    for dims, table in _given(problem, memory):
        free = sorted((v for v in dims if v in position), key=position.__getitem__)
        if len(free) == len(dims):
            turned = table if list(dims) == free else Table(*(part.T for part in table.parts))
            members[position[free[0]]].append((tuple(free), turned))
        else:  # a table of hubs alone belongs to the last bucket
            by_case[position[free[0]] if free else -1].append(_in_cases(table, dims, order.hubs, cases))

    scopes = [(v, *sorted(separator, key=position.__getitem__)) for v, separator in order.separators.items()]
    parents = [position[scope[1]] if len(scope) > 1 else index + 1 for index, scope in enumerate(scopes)]
    children: list[list[int]] = [[] for _ in scopes]
    for index, parent in enumerate(parents[:-1]):
        children[parent].append(index)
    tables, tables_by_case = _Distinct(), _Distinct()
    buckets = []
    for index, scope in enumerate(scopes):
        above = scopes[parents[index]] if index + 1 < len(scopes) else ()
        strides = dict(zip(scope[1:], _strides([sizes[v] for v in scope[1:]]), strict=True))
        buckets.append(
            Bucket(
                scope,
                tuple(sizes[v] for v in scope),
                tuple(tables.number(table) for table in _merged(scope, sizes, members[index])),
                tuple(tables_by_case.number(table) for table in _merged_by_case(scope, by_case[index])),
                tuple(children[index]),
                tuple(sizes[v] if v in strides else 1 for v in above),
                tuple(strides.get(v, 0) for v in above),
            )
        )
    tree = Tree(
        tuple(buckets),
        tuple(tables.tables),
        tuple(tables_by_case.tables),
        _row(tables.tables, ()),
        _row(tables_by_case.tables, (len(cases),)),
        order.hubs,
        cases,
    )
    deadline.allocate(tree_bytes(problem, order.hubs) + bounds_bytes(tree, 1))
    return tree


def _given(problem: SearchProblem, memory: bool) -> list[tuple[tuple[int, ...], Table]]:
    """The tables of all variables and edges, with the variables that they mention.

    An edge to a variable with one choice is a table of the other one.
    """
    given: list[tuple[tuple[int, ...], Table]] = []
    for index, variable in enumerate(problem.variables):
        sizes = variable.summed_bytes * memory, variable.transient_bytes * memory
        given.append(((index,), Table(variable.time_s, *sizes)))
    for edge, ends in zip(problem.edges, problem.ends, strict=True):
        left = tuple(end for end in ends if problem.variables[end].choices > 1) or ends[:1]
        time_s = edge.time_s if left == ends else edge.time_s.reshape(-1)
        nothing = np.zeros_like(time_s)
        given.append((left, Table(time_s, nothing, nothing)))
    return given


def _in_cases(table: Table, dims: Sequence[int], hubs: Sequence[int], cases: Sequence[tuple[int, ...]]) -> Table:
    """A table that mentions a hub, as [case, choice of its other variable (or 1)]."""
    at = np.array(cases).T
    picked = tuple(at[hubs.index(v)] if v in hubs else slice(None) for v in dims)
    parts = [part[picked] for part in table.parts]
    if len(dims) == 2 and dims[1] in hubs and dims[0] not in hubs:
        parts = [part.T for part in parts]
    return Table(*(part.reshape(len(cases), -1) for part in parts))


def _merged(scope: tuple[int, ...], sizes: list[int], members: list[tuple[tuple[int, ...], Table]]) -> list[Table]:
    """A bucket's tables in its scope's shape, one for the same dims; the variable's joins the first edge's."""
    by_dims: dict[tuple[int, ...], Table] = {}
    for dims, table in members:
        shaped = table.reshape(*(sizes[v] if v in dims else 1 for v in scope))
        by_dims[dims] = _both(by_dims[dims], shaped) if dims in by_dims else shaped
    own = by_dims.pop(scope[:1])
    if not by_dims:
        return [own]
    first = next(iter(by_dims))
    by_dims[first] = _both(own, by_dims[first])
    return list(by_dims.values())


def _merged_by_case(scope: tuple[int, ...], members: list[Table]) -> list[Table]:
    """The tables that depend on the case, added up, as [case, *scope]."""
    if not members:
        return []
    total, *others = members
    for table in others:
        total = _both(total, table)
    cases, choices = total.time_s.shape
    return [total.reshape(cases, choices, *[1] * (len(scope) - 1))]


def _row(tables: Sequence[Table], leading: tuple[int, ...]) -> Table:
    """All entries behind the leading dims in a row."""
    parts = zip(*(table.reshape(*leading, -1).parts for table in tables), strict=True)
    rows = [np.concatenate(part, axis=-1) for part in parts]
    return Table(*rows) if rows else Table(*[np.zeros((*leading, 0))] * 3)


def _strides(sizes: list[int]) -> list[int]:
    return [math.prod(sizes[index + 1 :]) for index in range(len(sizes))]


def _both(a: Table, b: Table) -> Table:
    return Table(a.time_s + b.time_s, a.summed_bytes + b.summed_bytes, np.maximum(a.transient_bytes, b.transient_bytes))
