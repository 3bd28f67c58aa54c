"""Choices that no wanted plan needs are left out before the search.

Takes a `SearchProblem` and how many plans are wanted; gives back a smaller problem and the way back to the choices of
the given one. Invariant: the `best` cheapest plans within any budget cost the same (seconds and bytes) in both.

A choice dominates another of its variable if changing the other into it makes no plan slower or larger, whatever the
neighbours choose. A choice is left out if `best` choices that stay dominate it: each plan with it then has `best` plans
that are as good, which differ from it only there. This holds of one variable after the other; since leaving out choices
of a neighbour only leaves fewer cases in which to be as good, all may be compared at once. Of equal choices, as they
come from strategies that differ only in what this program does not have, the first `best` stay.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from alpa_cfp.search.deadline import Deadline
from alpa_cfp.search.problem import Array, Edge, SearchProblem, Variable

Flags = NDArray[np.bool_]
# What goes in one round may make choices of its neighbours equal; more rounds hardly find more.
_MOST_ROUNDS = 3
# Room for rounding, relative to what is added up.
_ROUNDING = 1e-12
# Entries that are compared at once: pairs of choices, each with all choices of a neighbour.
_AT_ONCE = 2**21


@dataclass(frozen=True, slots=True)
class Pruned:
    """`problem` with the choices `kept[v]` of each variable of the given one."""

    problem: SearchProblem
    kept: tuple[tuple[int, ...], ...]

    def given(self, choices: Sequence[int]) -> tuple[int, ...]:
        """A plan of the smaller problem as one of the given problem."""
        return tuple(kept[choice] for kept, choice in zip(self.kept, choices, strict=True))


def prune(problem: SearchProblem, best: int, *, memory: bool, deadline: Deadline | None = None) -> Pruned:
    """Leaves out what is excluded or dominated; without `memory` only seconds count.

    Past the deadline nothing further is left out.
    """
    kept = tuple(tuple(range(variable.choices)) for variable in problem.variables)
    for _ in range(_MOST_ROUNDS):
        flags = _needed(problem, best, memory, deadline)
        if all(flag.all() for flag in flags):
            break
        kept = tuple(tuple(np.array(old)[flag].tolist()) for old, flag in zip(kept, flags, strict=True))
        problem = _restricted(problem, flags)
    return Pruned(problem, kept)


@dataclass(frozen=True, slots=True, eq=False)
class _Facing:
    """An edge's tables as one of its variables sees them: [own choice, neighbour's choice]."""

    time_s: Array
    transient_bytes: Array
    state_bytes: Array


def _needed(problem: SearchProblem, best: int, memory: bool, deadline: Deadline | None) -> list[Flags]:
    """For each variable which choices stay; variables with equal tables all round are looked at once."""
    contents: dict[tuple[bytes, ...], int] = {}

    def number(*parts: Array) -> int:
        digests = tuple(hashlib.sha256(np.ascontiguousarray(part).data).digest() for part in parts)
        return contents.setdefault(digests, len(contents))

    facing: list[list[_Facing]] = [[] for _ in problem.variables]
    names: list[list[tuple[int, ...]]] = [
        [(v.choices, number(v.time_s, v.state_bytes, v.saved_bytes, v.transient_bytes))] for v in problem.variables
    ]
    for edge, (first, second) in zip(problem.edges, problem.ends, strict=True):
        parts = (edge.time_s, edge.transient_bytes, edge.state_bytes)
        name = number(*parts)
        facing[first].append(_Facing(*parts))
        names[first].append((0, name, edge.time_s.shape[1]))
        facing[second].append(_Facing(*(part.T for part in parts)))
        names[second].append((1, name, edge.time_s.shape[0]))
    done: dict[tuple[tuple[int, ...], ...], Flags] = {}
    flags = []
    for variable, edges, name in zip(problem.variables, facing, names, strict=True):
        key = tuple(name)
        if deadline is not None and deadline.is_over:
            done[key] = np.ones(variable.choices, bool)
        elif key not in done:
            done[key] = _staying(variable, edges, best, memory)
        flags.append(done[key])
    return flags


def _staying(variable: Variable, edges: Sequence[_Facing], best: int, memory: bool) -> Flags:
    possible = np.isfinite(variable.time_s)
    for edge in edges:
        possible &= np.isfinite(edge.time_s).any(axis=1)
    if not possible.any():  # then there is no plan, and the search will say so
        return np.arange(variable.choices) == 0
    at = np.flatnonzero(possible)
    dominates = _dominates(variable, edges, at, memory)
    staying: list[int] = []
    # A choice's dominators have fewer dominators than itself, unless they are equal; so they come first.
    for choice in np.argsort(dominates.sum(axis=0), kind="stable").tolist():
        if dominates[staying, choice].sum() < best:
            staying.append(choice)
    flags = np.zeros(variable.choices, bool)
    flags[at[staying]] = True
    return flags


def _dominates(variable: Variable, edges: Sequence[_Facing], at: NDArray[np.int64], memory: bool) -> Flags:
    """[i, j]: whether choice at[i] is at least as good as at[j] in every plan."""
    times = [edge.time_s[at] for edge in edges]
    seconds = _Difference(variable.time_s[at], times, times)
    states = [edge.state_bytes[at] for edge in edges]
    summed = _Difference((variable.state_bytes + variable.saved_bytes)[at], states, times)
    transient = variable.transient_bytes[at]
    left = seconds.may_be_least()
    if memory:
        left &= summed.may_be_least() & (transient[:, None] <= transient)
    np.fill_diagonal(left, False)
    dominates = np.zeros((len(at), len(at)), bool)
    every = np.nonzero(left)
    step = max(1, _AT_ONCE // max((edge.time_s.shape[1] for edge in edges), default=1))
    for first in range(0, len(every[0]), step):
        i, j = seconds.never_positive(*(part[first : first + step] for part in every))
        if memory and len(i):
            i, j = summed.never_positive(i, j)
            for edge in edges:
                sizes = edge.transient_bytes[at]
                lower = (sizes[i] <= np.maximum(sizes[j], transient[j, None])) | np.isinf(edge.time_s[at[j]])
                i, j = i[lower.all(axis=1)], j[lower.all(axis=1)]
        dominates[i, j] = True
    return dominates


@dataclass(frozen=True, slots=True, eq=False)
class _Difference:
    """By how much one choice costs more than another: `own` and, for each edge, `tables`, [own, neighbour's choice].

    A plan that `times` exclude with the other choice need not be improved.
    """

    own: Array
    tables: Sequence[Array]
    times: Sequence[Array]

    def may_be_least(self) -> Flags:
        """[i, j]: whether i costs no more than j on the mean over neighbours' choices; no other i can dominate."""
        mean = self.own.copy()
        size = np.abs(mean)
        for table, times in zip(self.tables, self.times, strict=True):
            always = np.isfinite(times).all(axis=0)
            if always.any():
                mean += table[:, always].mean(axis=1)
                size += np.abs(table[:, always]).max(axis=1)
        return mean[:, None] <= mean + _ROUNDING * size.max()

    def never_positive(self, i: NDArray[np.int64], j: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """The pairs of which i costs no more than j whatever the neighbours choose."""
        most = self.own[i] - self.own[j]
        for table, times in zip(self.tables, self.times, strict=True):
            excluded = np.isinf(times[j])
            most += np.where(excluded, -np.inf, table[i] - np.where(excluded, 0.0, table[j])).max(axis=1)
        return i[most <= 0], j[most <= 0]


def _restricted(problem: SearchProblem, flags: Sequence[Flags]) -> SearchProblem:
    variables = [
        Variable(v.name, v.time_s[on], v.state_bytes[on], v.saved_bytes[on], v.transient_bytes[on])
        for v, on in zip(problem.variables, flags, strict=True)
    ]
    edges = []
    for edge, (first, second) in zip(problem.edges, problem.ends, strict=True):
        on = np.ix_(flags[first], flags[second])
        edges.append(Edge(edge.first, edge.second, edge.time_s[on], edge.transient_bytes[on], edge.state_bytes[on]))
    return SearchProblem(tuple(variables), tuple(edges))
