"""Labels (partial plans) as flat arrays, and which of them a frontier keeps.

Takes partial plans' seconds, summed bytes and largest transient; gives back the positions of those that may still be
part of one of the `best` cheapest plans. Invariant (k-dominance): a label is dropped only if at least `best` kept or
dropped labels of the same state are no slower, sum to no more bytes and have no larger transient; whatever completes it
completes those as well.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from alpa_cfp.search.problem import Array

Index = NDArray[np.int64]
# float64 counts whole numbers below it.
_EXACT = 2.0**53


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Partial plans of one bucket, a row each, sorted by `state` (the flat index of the separator's choices).

    `choice` is the bucket's variable's; `origins[i]` are rows of its i-th child's labels.
    """

    state: Index
    time_s: Array
    summed_bytes: Array
    transient_bytes: Array
    choice: Index
    origins: tuple[Index, ...]

    def take(self, rows: Index) -> "Labels":
        """These rows, in this order."""
        return Labels(
            self.state[rows],
            self.time_s[rows],
            self.summed_bytes[rows],
            self.transient_bytes[rows],
            self.choice[rows],
            tuple(origin[rows] for origin in self.origins),
        )


def frontier(state: Index, time_s: Array, summed_bytes: Array, transient_bytes: Array, best: int) -> Index:
    """Rows to keep, sorted by state; equal labels stay in the order given.

    Labels of one state and one transient are peeled: a Pareto frontier of (time, bytes), then the frontier of the rest,
    `best` times. What is left has a dominator in each layer. Labels with different transients are not compared (few
    differ inside an interval); that keeps more than is needed, never less.
    """
    order = np.lexsort((summed_bytes, time_s, transient_bytes, state))
    state, transient_bytes, summed_bytes = state[order], transient_bytes[order], summed_bytes[order]
    changes = (state[1:] != state[:-1]) | (transient_bytes[1:] != transient_bytes[:-1])
    group = np.concatenate([np.zeros(1), np.cumsum(changes)])
    # Each group lies wholly below the one before, so one running minimum serves all groups.
    span = summed_bytes.max() - summed_bytes.min() + 1
    if span * len(order) < _EXACT:
        level = summed_bytes - group * span
    else:  # ranks have the same order and are small
        level = np.unique(summed_bytes, return_inverse=True)[1] - group * (len(order) + 1)
    left = np.arange(len(order))
    kept = np.zeros(len(order), bool)
    for _ in range(best):
        values = level[left]
        smallest = np.minimum.accumulate(values)
        on_frontier = np.concatenate([np.ones(1, bool), values[1:] < smallest[:-1]])
        kept[left[on_frontier]] = True
        left = left[~on_frontier]
        if not len(left):
            break
    return order[kept]


def joined_count(state: Index, labels: Labels) -> int:
    """How many pairs `joined` gives."""
    first = np.searchsorted(labels.state, state, side="left")
    return int((np.searchsorted(labels.state, state, side="right") - first).sum())


def joined(state: Index, labels: Labels) -> tuple[Index, Index]:
    """Pairs each row of `state` with every label of that state: (rows, labels' rows)."""
    first = np.searchsorted(labels.state, state, side="left")
    count = np.searchsorted(labels.state, state, side="right") - first
    rows = np.repeat(np.arange(len(state)), count)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    return rows, within + np.repeat(first, count)
