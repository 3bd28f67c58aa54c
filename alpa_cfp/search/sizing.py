"""How much memory the exact search needs, worked out before anything of it is allocated.

Takes elimination orders and trees; gives bytes. Invariant: what is given is at least what numpy is asked for, so a
search that looks here first never holds more than its limit.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alpa_cfp.search.problem import SearchProblem
    from alpa_cfp.search.tree import Bucket, Tree

_FLOAT = 8
# Seconds, summed and transient bytes.
_PARTS = 3
# Copies of a table that are there at once while prices are made of it: seconds, prices, the two terms of their sum.
_PRICING = 4
# Bytes of a label while it is compared: its row, seconds, bytes, transient, partner, and what sorting them takes.
_LABEL = 16 * _FLOAT
# Of numpy's 64, less the variable's own, the weightings' and the cases'.
_MOST_DIMS = 60


def tree_bytes(problem: "SearchProblem", hubs: Sequence[int]) -> float:
    """The tables of a tree: those of the problem in a row, and those that a hub is in, once for each case."""
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
    # As they are, added up, and in a row.
    return float(_PARTS * _FLOAT * (3 * plain + 4 * by_case))


def bounds_bytes(tree: "Tree", rows: int) -> float:
    """One pass of bounds upward for so many weightings."""
    messages = sum(_separator(bucket) for bucket in tree.buckets)
    largest = max((math.prod(bucket.sizes) for bucket in tree.buckets), default=0)
    # A sum is made while its terms are there; the smallest of each row is taken of the whole.
    return float(_FLOAT * rows * (_PRICING * _entries(tree) + messages + 2 * largest))


def run_bytes(tree: "Tree", rows: int) -> float:
    """One run of the dynamic programme without its labels: bounds both ways, and those around each bucket."""
    messages = 2 * sum(_separator(bucket) for bucket in tree.buckets)
    around = max((math.prod(b.sizes) * (2 * len(b.children) + 4) for b in tree.buckets), default=0)
    return float(_FLOAT * rows * (_PRICING * _entries(tree) + messages + around))


def labels_bytes(count: int, rows: int, origins: int) -> float:
    """So many labels while they are compared, with their prices at each weighting."""
    return float(count * (_LABEL + _FLOAT * (2 * rows + origins)))


def largest_bytes(separators: Mapping[int, frozenset[int]], sizes: Sequence[int]) -> float:
    """The sum over the largest bucket of an elimination order; inf where numpy has no array of so many dims."""
    if any(len(separator) > _MOST_DIMS for separator in separators.values()):
        return math.inf
    return float(2 * _FLOAT * max(_volume(v, separator, sizes) for v, separator in separators.items()))


def work(tree: "Tree") -> int:
    """Entries that one pass of bounds looks at, for all cases."""
    return len(tree.cases) * sum(math.prod(bucket.sizes) for bucket in tree.buckets)


def _volume(v: int, separator: frozenset[int], sizes: Sequence[int]) -> int:
    return math.prod(sizes[u] for u in separator) * sizes[v]


def _entries(tree: "Tree") -> int:
    return tree.flat.time_s.size + tree.flat_by_case.time_s.shape[-1]


def _separator(bucket: "Bucket") -> int:
    return math.prod(bucket.separator_sizes)
