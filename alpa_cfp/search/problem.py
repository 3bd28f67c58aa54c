"""The search problem as a value: variables, edges between two of them, and what a plan costs.

Takes tables of seconds and bytes; gives a validated `SearchProblem` that evaluates plans. Invariant: the tables of a
problem have matching shapes, hold no NaN, and sum to less than 2**53 bytes, so bytes are exact in float64.

A plan picks one choice for each variable. Its time is the sum over variables and edges; its memory is
sum(state) + sum(saved) + max(transient) over the variables.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_cfp.search.errors import InvalidProblemError, bad_table

Array = NDArray[np.float64]
Index = NDArray[np.int64]
# From here on float64 does not represent every whole number.
_MOST_BYTES = float(2**53)


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """One thing to choose: the strategy of a block.

    Every table has one entry per choice. `time_s`: seconds (inf excludes the choice); `state_bytes`: held during the
    whole step; `saved_bytes`: held from the forward to the backward pass; `transient_bytes`: held only while this
    block runs.
    """

    name: str
    time_s: Array
    state_bytes: Array
    saved_bytes: Array
    transient_bytes: Array

    def __init__(
        self,
        name: str,
        time_s: ArrayLike,
        state_bytes: ArrayLike = 0,
        saved_bytes: ArrayLike = 0,
        transient_bytes: ArrayLike = 0,
    ) -> None:
        owner = f"variable {name!r}"
        time = _read_only(time_s)
        if np.isnan(time).any():
            raise bad_table(f"{owner}: time_s", "holds NaN; use inf for what is excluded")
        if (time == -np.inf).any():
            raise bad_table(f"{owner}: time_s", "holds -inf; a time is finite, or inf for what is excluded")
        if time.ndim != 1 or not time.size:
            raise bad_table(
                f"{owner}: time_s", f"has shape {time.shape}; one entry for each of at least one choice is needed"
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "time_s", time)
        object.__setattr__(self, "state_bytes", _bytes(state_bytes, f"{owner}: state_bytes", time.shape))
        object.__setattr__(self, "saved_bytes", _bytes(saved_bytes, f"{owner}: saved_bytes", time.shape))
        object.__setattr__(self, "transient_bytes", _bytes(transient_bytes, f"{owner}: transient_bytes", time.shape))

    @property
    def choices(self) -> int:
        """The number of choices."""
        return self.time_s.size

    @property
    def summed_bytes(self) -> Array:
        """The bytes that add up over variables: state and saved."""
        return self.state_bytes + self.saved_bytes


@dataclass(frozen=True, slots=True, eq=False)
class ClassTable:
    """A table of two variables' choices by classes of them: choices of a class cost the same beside all others.

    Attributes:
        table: Seconds, [classes of the first variable, classes of the second].
        rows, columns: For each choice of the first and of the second variable its class.
    """

    table: Array
    rows: Index
    columns: Index

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of choices."""
        return len(self.rows), len(self.columns)

    def at(self, first: int, second: int) -> float:
        """The seconds of two choices."""
        return float(self.table[self.rows[first], self.columns[second]])

    def scaled(self, factor: float) -> "ClassTable":
        """The table with all seconds multiplied."""
        return ClassTable(factor * self.table, self.rows, self.columns)

    def with_more(self, more_s: Mapping[tuple[int, int], float]) -> "ClassTable":
        """The table with more seconds for some pairs of choices, which get classes of their own."""
        if not more_s:
            return self
        table, sides = self.table, [self.rows.copy(), self.columns.copy()]
        for axis, side in enumerate(sides):
            own = sorted({pair[axis] for pair in more_s})
            table = np.concatenate([table, np.take(table, side[own], axis)], axis)
            side[own] = table.shape[axis] - len(own) + np.arange(len(own))
        for (first, second), seconds in more_s.items():
            table[sides[0][first], sides[1][second]] += seconds
        return ClassTable(table, *sides)


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """Seconds that two variables' choices cost together: `time_s`, indexed [first's choice, second's choice].

    Attributes:
        first, second: The names of the variables.
        table: The seconds.
        rows, columns: For each choice its row or column of the table; None where these are the choices.
    """

    first: str
    second: str
    table: Array
    rows: Index | None
    columns: Index | None

    def __init__(self, first: str, second: str, time_s: "ArrayLike | ClassTable") -> None:
        object.__setattr__(self, "first", first)
        object.__setattr__(self, "second", second)
        is_by_class = isinstance(time_s, ClassTable)
        time = _read_only(time_s.table if is_by_class else time_s)
        if time.ndim != 2:
            raise bad_table(
                f"edge {self.name}: time_s", f"has shape {time.shape}; (first's choices, second's choices) is needed"
            )
        if not np.isfinite(time).all():
            raise bad_table(
                f"edge {self.name}: time_s", "holds NaN or inf; only a choice of a variable can be excluded"
            )
        object.__setattr__(self, "table", time)
        object.__setattr__(self, "rows", time_s.rows if is_by_class else None)
        object.__setattr__(self, "columns", time_s.columns if is_by_class else None)

    @property
    def name(self) -> str:
        """Both ends, for messages."""
        return f"{self.first!r} - {self.second!r}"

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of choices of both."""
        if self.rows is None or self.columns is None:
            return self.table.shape[0], self.table.shape[1]
        return len(self.rows), len(self.columns)

    @property
    def time_s(self) -> Array:
        """The seconds of each pair of choices; made anew each time if the table is by classes."""
        return self.of(slice(None), slice(None))

    def of(self, first: Any, second: Any) -> Array:
        """The seconds of some choices of each variable, given as indices, flags or slices."""
        rows, columns = self.rows, self.columns
        if rows is None or columns is None:
            return self.table[first][:, second]
        return self.table[rows[first]][:, columns[second]]

    def at(self, first: int, second: int) -> float:
        """The seconds of two choices."""
        if self.rows is None or self.columns is None:
            return float(self.table[first, second])
        return float(self.table[self.rows[first], self.columns[second]])

    def mapped(self, function: Callable[[Array], Array]) -> "Edge":
        """The edge with a function of all seconds, which is given an array of any shape."""
        seconds = function(self.table)
        if self.rows is None or self.columns is None:
            return Edge(self.first, self.second, seconds)
        return Edge(self.first, self.second, ClassTable(seconds, self.rows, self.columns))


@dataclass(frozen=True, slots=True, order=True)
class MemoryUse:
    """A plan's memory on one device, in bytes: `total` = `state` + `saved` + `transient`."""

    state: int
    saved: int
    transient: int

    @property
    def summed(self) -> int:
        """What adds up over variables."""
        return self.state + self.saved

    @property
    def total(self) -> int:
        """The peak."""
        return self.summed + self.transient


@dataclass(frozen=True, slots=True)
class Solution:
    """A plan: one choice for each variable, in the problem's order, with its seconds and bytes.

    `gap_s`: an upper bound on how many seconds faster another plan could be (inf: nothing was proved). It is 0 unless
    the search met one of its limits.
    """

    choices: tuple[int, ...]
    time_s: float
    memory: MemoryUse
    gap_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Neighbour:
    """An edge as seen by one of its variables: the other variable, and `time_s` [own choice, its choice]."""

    variable: int
    time_s: Array


@dataclass(frozen=True, slots=True, eq=False)
class SearchProblem:
    """Variables with distinct names, and edges between them; several edges may join the same two variables.

    Raises InvalidProblemError for duplicate or unknown names, an edge from a variable to itself, a table of the wrong
    shape, or bytes too large to be counted exactly (2**53).
    """

    variables: tuple[Variable, ...]
    edges: tuple[Edge, ...] = ()
    _ends: tuple[tuple[int, int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "variables", tuple(self.variables))
        object.__setattr__(self, "edges", tuple(self.edges))
        position: dict[str, int] = {}
        for index, variable in enumerate(self.variables):
            if position.setdefault(variable.name, index) != index:
                raise InvalidProblemError(f"two variables are called {variable.name!r}; names must be distinct")
        ends = []
        for edge in self.edges:
            unknown = [end for end in (edge.first, edge.second) if end not in position]
            if unknown:
                raise InvalidProblemError(f"edge {edge.name}: no variable is called {unknown[0]!r}")
            first, second = position[edge.first], position[edge.second]
            if first == second:
                raise InvalidProblemError(
                    f"edge {edge.name}: joins a variable to itself; add its costs to the variable's tables"
                )
            shape = (self.variables[first].choices, self.variables[second].choices)
            if edge.shape != shape:
                raise bad_table(f"edge {edge.name}: time_s", f"has shape {edge.shape}; the choices are {shape}")
            ends.append((first, second))
        object.__setattr__(self, "_ends", tuple(ends))
        most = sum(
            float(table.max()) for v in self.variables for table in (v.state_bytes, v.saved_bytes, v.transient_bytes)
        )
        if most >= _MOST_BYTES:
            raise InvalidProblemError(f"the tables sum to {most:.3g} bytes; 2**53 and more cannot be counted exactly")

    @property
    def ends(self) -> tuple[tuple[int, int], ...]:
        """For each edge the positions of its two variables."""
        return self._ends

    def neighbours(self) -> list[list[Neighbour]]:
        """For each variable its edges, in the order of the edges."""
        found: list[list[Neighbour]] = [[] for _ in self.variables]
        for edge, (first, second) in zip(self.edges, self._ends, strict=True):
            time_s = edge.time_s
            found[first].append(Neighbour(second, time_s))
            found[second].append(Neighbour(first, time_s.T))
        return found

    def time(self, choices: Sequence[int]) -> float:
        """Seconds of a plan, correctly rounded, so that the order of terms does not matter; inf if excluded."""
        self._check(choices)
        terms = [float(v.time_s[c]) for v, c in zip(self.variables, choices, strict=True)]
        terms += [e.at(choices[i], choices[j]) for e, (i, j) in zip(self.edges, self._ends, strict=True)]
        return math.fsum(terms)

    def memory(self, choices: Sequence[int]) -> MemoryUse:
        """Bytes of a plan."""
        self._check(choices)
        chosen = list(zip(self.variables, choices, strict=True))
        return MemoryUse(
            int(sum(v.state_bytes[c] for v, c in chosen)),
            int(sum(v.saved_bytes[c] for v, c in chosen)),
            int(max((v.transient_bytes[c] for v, c in chosen), default=0.0)),
        )

    def solution(self, choices: Sequence[int]) -> Solution:
        """The plan with its time and memory."""
        return Solution(tuple(int(choice) for choice in choices), self.time(choices), self.memory(choices))

    def leanest(self) -> tuple[int, ...]:
        """The plan of least memory, whatever its time; all times must be finite.

        If the largest transient is to be at most some peak, each variable takes its smallest choice within that peak.
        So one look at each possible peak suffices.
        """
        peaks = np.unique(np.concatenate([v.transient_bytes for v in self.variables]))
        # A peak at which each variable has a choice; the bytes of all at it, and by how much they fall at later ones.
        least = max(float(v.transient_bytes.min()) for v in self.variables)
        peaks = peaks[peaks >= least]
        falls, total = np.zeros(len(peaks)), peaks.copy()
        for v in self.variables:
            order = np.argsort(v.transient_bytes, kind="stable")
            smallest = np.minimum.accumulate(v.summed_bytes[order])
            at = np.searchsorted(peaks, v.transient_bytes[order])
            total += smallest[np.flatnonzero(at == 0)[-1]]
            np.add.at(falls, at[1:], np.where(at[1:] > 0, np.diff(smallest), 0.0))
        total += np.cumsum(falls)
        peak = peaks[::-1][total[::-1].argmin()]  # of equals the largest, which allows the faster choices
        return tuple(int(np.where(v.transient_bytes <= peak, v.summed_bytes, np.inf).argmin()) for v in self.variables)

    def largest(self, choices: Sequence[int]) -> tuple[str, ...]:
        """The variables that have most state, saved and transient bytes in a plan (names; the first of equals)."""
        chosen = list(zip(self.variables, choices, strict=True))
        by_kind = (
            lambda each: each[0].state_bytes[each[1]],
            lambda each: each[0].saved_bytes[each[1]],
            lambda each: each[0].transient_bytes[each[1]],
        )
        return tuple(max(chosen, key=size)[0].name for size in by_kind)

    def _check(self, choices: Sequence[int]) -> None:
        if len(choices) != len(self.variables):
            raise InvalidProblemError(f"{len(choices)} choices for {len(self.variables)} variables")
        for variable, choice in zip(self.variables, choices, strict=True):
            if not 0 <= choice < variable.choices:
                raise InvalidProblemError(
                    f"variable {variable.name!r} has {variable.choices} choices, not one numbered {choice}"
                )


def _read_only(values: ArrayLike) -> Array:
    copy = np.array(values, dtype=np.float64)
    copy.flags.writeable = False
    return copy


def _bytes(values: ArrayLike, table: str, shape: tuple[int, ...]) -> Array:
    given = np.array(values, dtype=np.float64)
    if given.shape not in ((), shape):
        raise bad_table(table, f"has shape {given.shape}; {shape} is needed, as time_s has")
    if not np.isfinite(given).all() or (given != np.floor(given)).any():
        raise bad_table(table, "holds NaN, inf or a fraction; whole bytes are needed")
    if (given < 0).any():
        raise bad_table(table, "holds a negative number of bytes")
    # A single number for all choices needs no table.
    size = np.broadcast_to(given, shape)
    size.flags.writeable = False
    return size
