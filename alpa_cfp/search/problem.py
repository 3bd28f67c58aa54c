"""The search problem as a value: variables, edges between two of them, and what a vector of choices costs.

Takes tables of seconds and bytes; gives back a validated `SearchProblem` that evaluates plans. Invariant: the tables of
a problem that exists have matching shapes, hold no NaN, and sum to less than 2**53 bytes, so bytes are exact in
float64.

A plan picks one choice for each variable. Its time is the sum over variables and edges; its memory is
sum(state) + sum(saved) + max(transient), the maximum taken over variables and edges (DESIGN, "Search").
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_cfp.search.errors import bad_problem, bad_table

Array = NDArray[np.float64]
# Above it float64 no longer counts single bytes.
_MOST_BYTES = float(2**53)


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """One thing to choose: a segment instance's strategies or a boundary tensor's shardings.

    Every table has one entry a choice. `time_s`: seconds (inf excludes the choice); `state_bytes`: persistent, counted
    once; `saved_bytes`: kept over the whole step; `transient_bytes`: lives only while this segment runs.
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
        time = _times(time_s, owner)
        if time.ndim != 1 or not time.size:
            raise bad_table(
                owner, "time_s", f"has shape {time.shape}; one entry for each of at least one choice is needed"
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "time_s", time)
        for table, values in (
            ("state_bytes", state_bytes),
            ("saved_bytes", saved_bytes),
            ("transient_bytes", transient_bytes),
        ):
            object.__setattr__(self, table, _bytes(values, owner, table, time.shape, negative=False))

    @property
    def choices(self) -> int:
        """How many choices there are."""
        return self.time_s.size


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """What two variables' choices cost together; tables are indexed [first's choice, second's choice].

    `time_s`: seconds (inf excludes the pair); `transient_bytes`: lives only while the boundary is crossed;
    `state_bytes`: a correction, negative where a parameter that both count is shared.
    """

    first: str
    second: str
    time_s: Array
    transient_bytes: Array
    state_bytes: Array

    def __init__(
        self, first: str, second: str, time_s: ArrayLike, transient_bytes: ArrayLike = 0, state_bytes: ArrayLike = 0
    ) -> None:
        owner = f"edge {first!r} - {second!r}"
        time = _times(time_s, owner)
        if time.ndim != 2:
            raise bad_table(owner, "time_s", f"has shape {time.shape}; (first's choices, second's choices) is needed")
        object.__setattr__(self, "first", first)
        object.__setattr__(self, "second", second)
        object.__setattr__(self, "time_s", time)
        transient = _bytes(transient_bytes, owner, "transient_bytes", time.shape, negative=False)
        object.__setattr__(self, "transient_bytes", transient)
        object.__setattr__(self, "state_bytes", _bytes(state_bytes, owner, "state_bytes", time.shape, negative=True))

    @property
    def name(self) -> str:
        """Both ends, for messages."""
        return f"{self.first} - {self.second}"


@dataclass(frozen=True, slots=True, order=True)
class MemoryUse:
    """A plan's memory on one device, in bytes: `total` = `state` + `saved` + `transient`."""

    state: int
    saved: int
    transient: int

    @property
    def total(self) -> int:
        """The peak."""
        return self.state + self.saved + self.transient


@dataclass(frozen=True, slots=True)
class Solution:
    """A plan: one choice for each variable, in the problem's order, with its seconds and bytes.

    `gap_s`: by how many seconds at most another could be faster (inf: nothing was proved). It is 0 unless the search
    met its time limit; of several plans the n-th's gap is that to the true n-th best.
    """

    choices: tuple[int, ...]
    time_s: float
    memory: MemoryUse
    gap_s: float = 0.0


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
                raise bad_problem(f"two variables are called {variable.name!r}; names must be distinct")
        ends = []
        for edge in self.edges:
            unknown = [end for end in (edge.first, edge.second) if end not in position]
            if unknown:
                raise bad_problem(f"edge {edge.name}: no variable is called {unknown[0]!r}")
            first, second = position[edge.first], position[edge.second]
            if first == second:
                raise bad_problem(
                    f"edge {edge.name}: joins a variable to itself; add its costs to the variable's tables"
                )
            shape = (self.variables[first].choices, self.variables[second].choices)
            if edge.time_s.shape != shape:
                raise bad_table(
                    f"edge {edge.name}", "time_s", f"has shape {edge.time_s.shape}; the choices are {shape}"
                )
            ends.append((first, second))
        object.__setattr__(self, "_ends", tuple(ends))
        most = sum(
            float(table.max()) for v in self.variables for table in (v.state_bytes, v.saved_bytes, v.transient_bytes)
        ) + sum(float(np.abs(e.state_bytes).max(initial=0) + e.transient_bytes.max(initial=0)) for e in self.edges)
        if most >= _MOST_BYTES:
            raise bad_problem(f"the tables sum to {most:.3g} bytes; 2**53 and more cannot be counted exactly")

    @property
    def ends(self) -> tuple[tuple[int, int], ...]:
        """For each edge the positions of its two variables."""
        return self._ends

    def time(self, choices: Sequence[int]) -> float:
        """Seconds of a plan, correctly rounded, so that the order of terms does not matter; inf if excluded."""
        self._check(choices)
        terms = [float(v.time_s[c]) for v, c in zip(self.variables, choices, strict=True)]
        terms += [float(e.time_s[choices[i], choices[j]]) for e, (i, j) in zip(self.edges, self._ends, strict=True)]
        return math.fsum(terms)

    def memory(self, choices: Sequence[int]) -> MemoryUse:
        """Bytes of a plan; an edge's correction counts as state."""
        self._check(choices)
        picked = list(zip(self.variables, choices, strict=True))
        joined = [(edge, (choices[i], choices[j])) for edge, (i, j) in zip(self.edges, self._ends, strict=True)]
        return MemoryUse(
            int(sum(v.state_bytes[c] for v, c in picked) + sum(e.state_bytes[pair] for e, pair in joined)),
            int(sum(v.saved_bytes[c] for v, c in picked)),
            int(
                max(
                    [*(v.transient_bytes[c] for v, c in picked), *(e.transient_bytes[p] for e, p in joined)],
                    default=0.0,
                )
            ),
        )

    def solution(self, choices: Sequence[int]) -> Solution:
        """The plan with its time and memory."""
        return Solution(tuple(int(choice) for choice in choices), self.time(choices), self.memory(choices))

    def largest(self, choices: Sequence[int]) -> tuple[str, str, str]:
        """Whose state, whose saved and whose transient bytes are the most in a plan (names; the first of equals)."""
        self._check(choices)
        state = [(float(v.state_bytes[c]), v.name) for v, c in zip(self.variables, choices, strict=True)]
        saved = [(float(v.saved_bytes[c]), v.name) for v, c in zip(self.variables, choices, strict=True)]
        transient = [(float(v.transient_bytes[c]), v.name) for v, c in zip(self.variables, choices, strict=True)]
        for edge, (i, j) in zip(self.edges, self._ends, strict=True):
            transient.append((float(edge.transient_bytes[choices[i], choices[j]]), edge.name))

        def most(rows: list[tuple[float, str]]) -> str:
            return max(rows, key=lambda row: row[0], default=(0.0, "nothing"))[1]

        return most(state), most(saved), most(transient)

    def _check(self, choices: Sequence[int]) -> None:
        if len(choices) != len(self.variables):
            raise bad_problem(f"{len(choices)} choices for {len(self.variables)} variables")
        for variable, choice in zip(self.variables, choices, strict=True):
            if not 0 <= choice < variable.choices:
                raise bad_problem(
                    f"variable {variable.name!r} has {variable.choices} choices, not one numbered {choice}"
                )


def _times(values: ArrayLike, owner: str) -> Array:
    time = np.array(values, dtype=np.float64)
    if np.isnan(time).any():
        raise bad_table(owner, "time_s", "holds NaN; use inf for what is excluded")
    if (time == -np.inf).any():
        raise bad_table(owner, "time_s", "holds -inf; a time is finite, or inf for what is excluded")
    time.flags.writeable = False
    return time


def _bytes(values: ArrayLike, owner: str, table: str, shape: tuple[int, ...], *, negative: bool) -> Array:
    given = np.array(values, dtype=np.float64)
    if given.shape not in ((), shape):
        raise bad_table(owner, table, f"has shape {given.shape}; {shape} is needed, as time_s has")
    if not np.isfinite(given).all() or (given != np.floor(given)).any():
        raise bad_table(owner, table, "holds NaN, inf or a fraction; whole bytes are needed")
    if not negative and (given < 0).any():
        raise bad_table(owner, table, "holds a negative number of bytes; only an edge's state_bytes may")
    # One number for all choices takes no table.
    size = np.broadcast_to(given, shape)
    size.flags.writeable = False
    return size
