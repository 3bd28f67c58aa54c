"""Leaves out choices that the best plan does not need, before the search.

Takes a `SearchProblem`; gives a smaller problem and the way back to the choices of the given one. Invariant: the
cheapest plan within any budget costs the same (seconds and bytes) in both.

A choice dominates another of its variable if changing the other into it makes no plan slower or larger, whatever the
neighbours choose. A choice is left out if one that stays dominates it: each plan with it then has a plan that is as
good, which differs from it only there. This holds of one variable after the other; since leaving out choices of a
neighbour only leaves fewer cases to compare in, all variables may be compared at once. Of equal choices the first
stays; they come from strategies that differ only in what this program does not have.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from alpa_cfp.search.limits import Deadline
from alpa_cfp.search.problem import Array, Edge, SearchProblem, Variable

Flags = NDArray[np.bool_]
# One round may make choices of a variable's neighbours equal; more rounds hardly find more.
_MOST_ROUNDS = 3
# Room for rounding, relative to what is added up.
_ROUNDING = 1e-12
# Entries that are compared at once: pairs of choices, each with all choices of a neighbour.
_AT_ONCE = 2**18


@dataclass(frozen=True, slots=True)
class Pruned:
    """`problem` with the choices `kept[v]` of each variable of the given one; none is excluded."""

    problem: SearchProblem
    kept: tuple[tuple[int, ...], ...]

    def given(self, choices: Sequence[int]) -> tuple[int, ...]:
        """A plan of the smaller problem as one of the given problem."""
        return tuple(kept[choice] for kept, choice in zip(self.kept, choices, strict=True))


def prune(problem: SearchProblem, deadline: Deadline, *, memory: bool) -> Pruned:
    """Leaves out what is excluded or dominated; without `memory` only seconds count.

    Each variable must have a choice that is not excluded. After the deadline only those are left out that are excluded,
    or dominated by one that costs the same beside all choices of neighbours.
    """
    flags = [_of_classes(problem, number, memory) for number in range(len(problem.variables))]
    kept = tuple(tuple(np.flatnonzero(flag).tolist()) for flag in flags)
    problem, known = _restricted(problem, flags), dict[bytes, Flags]()
    for _ in range(_MOST_ROUNDS):
        flags = _needed(problem, deadline, memory, known)
        if all(flag.all() for flag in flags):
            break
        kept = tuple(tuple(np.array(old)[flag].tolist()) for old, flag in zip(kept, flags, strict=True))
        problem = _restricted(problem, flags)
    return Pruned(problem, kept)


def _of_classes(problem: SearchProblem, number: int, memory: bool) -> Flags:
    """Which choices of a variable stay of those that are of one class on each edge: these differ only by themselves.

    So tables of pairs of choices are made only for what stays.
    """
    variable, sides = problem.variables[number], list[NDArray[np.int64]]()
    for edge, (first, second) in zip(problem.edges, problem.ends, strict=True):
        if number in (first, second):
            side = edge.rows if number == first else edge.columns
            if side is None:
                return np.isfinite(variable.time_s)
            sides.append(side)
    if not sides:
        return np.isfinite(variable.time_s)
    able, flags = np.flatnonzero(np.isfinite(variable.time_s)), np.zeros(variable.choices, bool)
    own = [variable.time_s, *((variable.summed_bytes, variable.transient_bytes) if memory else ())]
    members: dict[tuple[int, ...], list[int]] = {}
    # The fastest first, and of equals the smallest and the first: none is dominated by one behind it.
    for choice in able[np.lexsort([each[able] for each in reversed(own)])].tolist():
        staying = members.setdefault(tuple(int(side[choice]) for side in sides), [])
        if not any(all(each[other] <= each[choice] for each in own) for other in staying):
            staying.append(choice)
            flags[choice] = True
    return flags


def digest(*tables: Array) -> bytes:
    """A hash of the tables' contents, to find equal ones."""
    found = hashlib.sha256()
    for table in tables:
        found.update(repr(table.shape).encode())
        found.update(np.ascontiguousarray(table).data)
    return found.digest()


def _needed(problem: SearchProblem, deadline: Deadline, memory: bool, known: dict[bytes, Flags]) -> list[Flags]:
    """For each variable which choices stay; variables with equal tables all round are compared once, in all rounds."""
    flags = []
    for variable, neighbours in zip(problem.variables, problem.neighbours(), strict=True):
        times = [neighbour.time_s for neighbour in neighbours]
        if deadline.is_over:
            flags.append(np.isfinite(variable.time_s))
            continue
        own = (variable.time_s, variable.state_bytes, variable.saved_bytes, variable.transient_bytes)
        key = digest(*own, *times)
        if key not in known:
            known[key] = _undominated(variable, times, memory)
        flags.append(known[key])
    return flags


def _undominated(variable: Variable, times: Sequence[Array], memory: bool) -> Flags:
    at = np.flatnonzero(np.isfinite(variable.time_s))
    dominates = _dominates(variable, times, at, memory)
    staying: list[int] = []
    # A choice's dominators have fewer dominators than itself, unless they are equal; so they come first.
    for choice in np.argsort(dominates.sum(axis=0), kind="stable").tolist():
        if not dominates[staying, choice].any():
            staying.append(choice)
    flags = np.zeros(variable.choices, bool)
    flags[at[staying]] = True
    return flags


def _dominates(variable: Variable, times: Sequence[Array], at: NDArray[np.int64], memory: bool) -> Flags:
    """[i, j]: whether choice at[i] is at least as good as at[j] in every plan."""
    own, edges = variable.time_s[at], [time[at] for time in times]
    mean, size = own.copy(), np.abs(own)
    for edge in edges:
        mean += edge.mean(axis=1)
        size += np.abs(edge).max(axis=1)
    # Only a choice that is no slower on the mean over the neighbours' choices can be no slower for each of them.
    left = mean[:, None] <= mean + _ROUNDING * size.max()
    if memory:
        for sizes in (variable.summed_bytes[at], variable.transient_bytes[at]):
            left &= sizes[:, None] <= sizes
    np.fill_diagonal(left, False)
    i, j = np.nonzero(left)
    slower_s = own[i] - own[j]
    # Over all edges that are not looked at yet, a choice is at least so much slower as it is on the mean.
    means = [edge.mean(axis=1) for edge in edges]
    rest_s = mean - own
    for edge, average in zip(edges, means, strict=True):
        slower_s += _largest_difference(edge, i, j)
        rest_s -= average
        hopeful = slower_s + rest_s[i] - rest_s[j] <= _ROUNDING * size.max()
        i, j, slower_s = i[hopeful], j[hopeful], slower_s[hopeful]
    dominates = np.zeros_like(left)
    dominates[i, j] = slower_s <= 0
    return dominates


def _largest_difference(edge: Array, i: NDArray[np.int64], j: NDArray[np.int64]) -> Array:
    """For each pair of choices, by how much the first costs more than the second at most."""
    step = max(1, _AT_ONCE // edge.shape[1])
    parts = [slice(first, first + step) for first in range(0, len(i), step)]
    return np.concatenate([np.zeros(0), *((edge[i[part]] - edge[j[part]]).max(axis=1) for part in parts)])


def _restricted(problem: SearchProblem, flags: Sequence[Flags]) -> SearchProblem:
    variables = [
        v if on.all() else Variable(v.name, v.time_s[on], v.state_bytes[on], v.saved_bytes[on], v.transient_bytes[on])
        for v, on in zip(problem.variables, flags, strict=True)
    ]
    edges = [
        edge
        if edge.rows is None and flags[first].all() and flags[second].all()
        else Edge(edge.first, edge.second, edge.of(flags[first], flags[second]))
        for edge, (first, second) in zip(problem.edges, problem.ends, strict=True)
    ]
    return SearchProblem(tuple(variables), tuple(edges))
