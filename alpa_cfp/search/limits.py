"""The search's own limits of time and memory, and how many bytes each of its steps allocates.

Takes a limit in seconds, counted from when the `Deadline` is made, and one in bytes; raises a `Stopped` where one is
exceeded, which never leaves this package. Sizes are computed from elimination orders and trees, before anything is
allocated. Invariants: a computed size is at least what numpy allocates, so a search never holds more than its limit;
without a time limit nothing here depends on the clock, so the search is deterministic.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alpa_cfp.search.problem import SearchProblem
    from alpa_cfp.search.tree import Bucket, Tree

# The default limit of memory.
MEMORY_BYTES = 2 * 2**30
_FLOAT = 8
# A table has three arrays: seconds, summed bytes and transient bytes.
_PARTS = 3
# Copies of a table that exist at once while it is priced: seconds, prices, and the two terms of their sum.
_PRICING = 4
# Bytes of a label while labels are compared: its row, seconds, bytes, transient, partner, and what sorting takes.
_LABEL = 16 * _FLOAT
# numpy's limit is 64, of which the variable itself, the weightings and the cases take some.
MOST_DIMS = 60


class Stopped(Exception):
    """A limit was exceeded."""


class OutOfTime(Stopped):
    """The time limit was exceeded."""


class OutOfSpace(Stopped):
    """A step would allocate more than the memory limit."""

    def __init__(self, size_bytes: float) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


@dataclass(frozen=True, slots=True)
class Deadline:
    """The limits of one search: `check` raises after `limit_s` seconds, `allocate` above `memory_bytes`."""

    limit_s: float = math.inf
    memory_bytes: float = MEMORY_BYTES
    began_s: float = field(default_factory=time.perf_counter)

    @property
    def passed_s(self) -> float:
        """Seconds since the deadline was made."""
        return time.perf_counter() - self.began_s

    @property
    def is_over(self) -> bool:
        """Whether the time limit is exceeded."""
        return self.passed_s > self.limit_s

    def part(self, share: float) -> "Deadline":
        """A deadline that is over after a share of the remaining time."""
        passed_s = self.passed_s
        return replace(self, limit_s=passed_s + share * max(self.limit_s - passed_s, 0.0))

    def check(self) -> None:
        """Raises OutOfTime if the time limit is exceeded."""
        if self.is_over:
            raise OutOfTime

    def allocate(self, size_bytes: float) -> None:
        """Raises OutOfSpace if the search would hold more than its limit, given all that it is about to hold."""
        if size_bytes > self.memory_bytes or math.isinf(size_bytes):
            raise OutOfSpace(size_bytes)


def tree_bytes(problem: "SearchProblem", hubs: Sequence[int]) -> float:
    """The tables of a tree: those of the problem in a row, and those that mention a hub once for each case."""
    sizes = [variable.choices for variable in problem.variables]
    cases = math.prod(sizes[hub] for hub in hubs)
    among = set(hubs)
    plain = sum(size for v, size in enumerate(sizes) if v not in among)
    by_case = cases * len(among)
    for first, second in problem.ends:
        joined = [sizes[v] for v in (first, second) if v not in among]
        if len(joined) == 2:
            plain += math.prod(joined)
        else:
            by_case += cases * math.prod(joined)
    # As given, added up, and in a row.
    return float(_PARTS * _FLOAT * (3 * plain + 4 * by_case))


def bounds_bytes(tree: "Tree", rows: int) -> float:
    """One pass of bounds upward for `rows` weightings."""
    messages = sum(_separator(bucket) for bucket in tree.buckets)
    largest = max((math.prod(bucket.sizes) for bucket in tree.buckets), default=0)
    # A sum and its terms exist at once; then the minimum of each row of the whole is taken.
    return float(_FLOAT * rows * (_PRICING * _entries(tree) + messages + 2 * largest))


def run_bytes(tree: "Tree", rows: int) -> float:
    """One run of the dynamic programme without its labels: bounds both ways, and those around each bucket."""
    messages = 2 * sum(_separator(bucket) for bucket in tree.buckets)
    around = max((math.prod(b.sizes) * (2 * len(b.children) + 4) for b in tree.buckets), default=0)
    return float(_FLOAT * rows * (_PRICING * _entries(tree) + messages + around))


def labels_bytes(count: int, rows: int, origins: int) -> float:
    """`count` labels while they are compared, with their prices at `rows` weightings."""
    return float(count * (_LABEL + _FLOAT * (2 * rows + origins)))


def largest_bytes(separators: Mapping[int, frozenset[int]], sizes: Sequence[int]) -> float:
    """The sum over the largest bucket of an elimination order; inf where numpy has no array of so many dims."""
    if any(len(separator) > MOST_DIMS for separator in separators.values()):
        return math.inf
    return float(2 * _FLOAT * max(volume(v, separator, sizes) for v, separator in separators.items()))


def work(tree: "Tree") -> int:
    """Entries that one pass of bounds visits, for all cases."""
    return len(tree.cases) * sum(math.prod(bucket.sizes) for bucket in tree.buckets)


def volume(v: int, separator: frozenset[int], sizes: Sequence[int]) -> int:
    """Entries of a variable's bucket: the joint choices of the variable and its separator."""
    return math.prod(sizes[u] for u in separator) * sizes[v]


def _entries(tree: "Tree") -> int:
    return tree.flat.time_s.size + tree.flat_by_case.time_s.shape[-1]


def _separator(bucket: "Bucket") -> int:
    return math.prod(bucket.separator_sizes)
