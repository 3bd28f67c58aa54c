"""The dynamic programme: buckets are eliminated in order, each giving its parent a frontier of labels by state.

Takes bounds for an interval of transients, and limits on time and memory; gives the cheapest plan within the limits, as
choices. Labels are partial plans, stored as flat arrays. Invariants: unless the result is `truncated`, no plan of the
interval that is within the limits is cheaper (by seconds, then by bytes); a label is dropped only if its completions
exceed a limit, or if another label of the same state is no slower, sums to no more bytes and has no larger transient.

Two things keep the frontiers small. A label whose price plus the bound on its completion is above a limit at any
weighting is dropped, so only labels within the gap between the best known plan and the Lagrangian bound stay. And
repeated layers have coinciding sums, of which one label suffices. A `width` truncates larger frontiers; the result is
then a heuristic, which tightens the limits of the next, wider run.

Where that gap is wide the frontiers, and the time, can still grow exponentially. A variable joined to every layer moves
all sums at once, so no single multiplier is good for all of its choices; it is branched on (order.py).
"""

from dataclasses import dataclass

import numpy as np

from alpa_cfp.search.bounds import Upward, lifted, outside
from alpa_cfp.search.limits import labels_bytes, run_bytes
from alpa_cfp.search.problem import Array, Index
from alpa_cfp.search.tree import Bucket, Table, Tree

# Before labels are compared, at most so many for each one that a run may keep are selected by their bounds.
_CANDIDATES = 4
# float64 represents every whole number below it.
_EXACT = 2.0**53


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Partial plans of one bucket, one per row, sorted by `state` (the flat index of the separator's choices).

    `choice` is that of the bucket's variable; `origins[i]` are rows of its i-th child's labels.
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


@dataclass(frozen=True, slots=True)
class Eliminated:
    """The cheapest plan, or None; whether any frontier was truncated; the size of the largest frontier."""

    choices: tuple[int, ...] | None
    truncated: bool
    largest: int


def eliminate(up: Upward, down: tuple[Array, ...], time_s: float, budget_bytes: float, *, width: int) -> Eliminated:
    """Runs it within `time_s` (inclusive, may be inf) and `budget_bytes`, with at most `width` labels per bucket.

    All of `up`'s weightings are in one case, and so is the plan.
    """
    tree, limits = up.tree, up.weights.limits(time_s, budget_bytes)
    done: list[Labels] = []
    rows_bytes = run_bytes(tree, len(up.weights.second))
    up.deadline.allocate(rows_bytes)
    truncated, largest, count = False, 0, 0
    case = int(up.weights.case[0])
    for number, bucket in enumerate(tree.buckets):
        up.deadline.check()
        around = outside(up, bucket, down[number])
        # rest[i] covers all but the first i children's messages: the labels hold these and the bucket's own tables.
        rests = [around]
        for child in reversed(bucket.children):
            rests.append(rests[-1] + lifted(up.messages[child], tree, child))
        flat = [_flat(rest, bucket) for rest in reversed(rests)]
        floor = up.weights.byte * up.interval.low
        entry = np.flatnonzero((flat[0] + floor[:, None] <= limits[:, None]).all(axis=0))
        time, summed, transient = _own(tree, bucket, entry, up.interval.low, case)
        # `around` prices the bucket's own tables; the labels do so too, so they are taken off here.
        own = _priced(up, time, summed)
        rest_above = [values[:, entry] - own for values in flat]
        row = np.arange(len(entry))
        origins: list[Index] = []
        for index, child in enumerate(bucket.children):
            labels = done[child]
            state = _project(bucket, tree.buckets[child], entry)[row]
            first, last = (np.searchsorted(labels.state, state, side=side) for side in ("left", "right"))
            candidates = labels_bytes(int((last - first).sum()), len(limits), len(origins) + 1)
            up.deadline.allocate(rows_bytes + labels_bytes(count, 0, 2) + candidates)
            rows, partner = _pairs(first, last)
            row, origins = row[rows], [*(origin[rows] for origin in origins), partner]
            time, summed = time[rows] + labels.time_s[partner], summed[rows] + labels.summed_bytes[partner]
            transient = np.maximum(transient[rows], labels.transient_bytes[partner])
            price = _priced(up, time, summed + transient)
            price += rest_above[index + 1][:, row]
            good = np.flatnonzero((price <= limits[:, None]).all(axis=0))
            good, cut = _narrowed(good, price, up, _CANDIDATES * width, budget_bytes)
            truncated |= cut
            if index + 1 < len(bucket.children) and len(good):  # joins multiply, so thin between them
                good = good[frontier(row[good], time[good], summed[good], transient[good])]
                good, cut = _narrowed(good, price, up, width, budget_bytes)
                truncated |= cut
            row, origins = row[good], [origin[good] for origin in origins]
            time, summed, transient = time[good], summed[good], transient[good]
        if not len(row):
            return Eliminated(None, truncated, largest)
        states = int(np.prod(bucket.separator_sizes, dtype=np.int64))
        choice, state = np.divmod(entry[row], states)
        keep = frontier(state, time, summed, transient)
        price = _priced(up, time, summed + transient) + rest_above[-1][:, row]
        keep, cut = _narrowed(keep, price, up, width, budget_bytes)
        truncated |= cut
        done.append(Labels(state, time, summed, transient, choice, tuple(origins)).take(keep))
        largest, count = max(largest, len(keep)), count + len(keep)
    final = done[-1]
    total = final.summed_bytes + final.transient_bytes
    fits = np.flatnonzero(total <= budget_bytes)
    if not len(fits):
        return Eliminated(None, truncated, largest)
    cheapest = int(fits[np.lexsort((total[fits], final.time_s[fits]))[0]])
    return Eliminated(_traced(tree, done, cheapest, case), truncated, largest)


def frontier(state: Index, time_s: Array, summed_bytes: Array, transient_bytes: Array) -> Index:
    """The rows of the Pareto frontiers of (time, bytes), sorted by state; equal labels stay in the order given.

    Each state and transient has a frontier of its own. Labels with different transients are not compared (few differ
    inside an interval); that keeps more than is needed, never less.
    """
    order = np.lexsort((summed_bytes, time_s, transient_bytes, state))
    state, transient_bytes, summed_bytes = state[order], transient_bytes[order], summed_bytes[order]
    changes = (state[1:] != state[:-1]) | (transient_bytes[1:] != transient_bytes[:-1])
    group = np.concatenate([np.zeros(1), np.cumsum(changes)])
    # Each group's levels are below all levels of the group before, so one running minimum serves all groups.
    span = summed_bytes.max() - summed_bytes.min() + 1
    if span * len(order) < _EXACT:
        level = summed_bytes - group * span
    else:  # ranks have the same order and are small
        level = np.unique(summed_bytes, return_inverse=True)[1] - group * (len(order) + 1)
    smallest = np.minimum.accumulate(level)
    return order[np.concatenate([np.ones(1, bool), level[1:] < smallest[:-1]])]


def _pairs(first: Index, last: Index) -> tuple[Index, Index]:
    """Pairs each row i with every number in first[i] .. last[i] - 1: (rows, numbers)."""
    count = last - first
    rows = np.repeat(np.arange(len(count)), count)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    return rows, within + np.repeat(first, count)


def _flat(values: Array, bucket: Bucket) -> Array:
    return np.broadcast_to(values, (values.shape[0], *bucket.sizes)).reshape(values.shape[0], -1)


def _priced(up: Upward, time_s: Array, size_bytes: Array) -> Array:
    return up.weights.second[:, None] * time_s + up.weights.byte[:, None] * size_bytes


def _own(tree: Tree, bucket: Bucket, entry: Index, low: float, case: int) -> tuple[Array, Array, Array]:
    """Seconds, summed bytes and largest transient of a bucket's own tables at entries of its scope."""
    at = np.unravel_index(entry, bucket.sizes)
    time, summed, transient = np.zeros(len(entry)), np.zeros(len(entry)), np.full(len(entry), low)
    in_case = (Table(*(part[case] for part in tree.by_case[number].parts)) for number in bucket.by_case)
    for table in (*(tree.tables[number] for number in bucket.tables), *in_case):
        where = tuple(
            coordinate if size > 1 else np.zeros_like(coordinate)
            for coordinate, size in zip(at, table.time_s.shape, strict=True)
        )
        time, summed = time + table.time_s[where], summed + table.summed_bytes[where]
        transient = np.maximum(transient, table.transient_bytes[where])
    return time, summed, transient


def _project(bucket: Bucket, child: Bucket, entry: Index) -> Index:
    """The child's separator state at entries of the parent's scope."""
    state = np.zeros(len(entry), np.int64)
    for coordinate, stride in zip(np.unravel_index(entry, bucket.sizes), child.projection, strict=True):
        state += coordinate * stride
    return state


def _narrowed(keep: Index, price: Array, up: Upward, width: int, budget_bytes: float) -> tuple[Index, bool]:
    """The `width` most promising rows, by the best bound on a whole plan's seconds, in the order given."""
    if len(keep) <= width:
        return keep, False
    timed = up.weights.second > 0
    bound = (price[timed][:, keep] - up.weights.byte[timed, None] * budget_bytes).max(axis=0)
    return keep[np.sort(np.argsort(bound, kind="stable")[:width])], True


def _traced(tree: Tree, done: list[Labels], last: int, case: int) -> tuple[int, ...]:
    """The choices of all variables, from a label of the last bucket and its origins."""
    chosen: dict[int, int] = {}
    stack = [(len(tree.buckets) - 1, last)]
    while stack:
        number, row = stack.pop()
        bucket, labels = tree.buckets[number], done[number]
        chosen[bucket.scope[0]] = int(labels.choice[row])
        stack.extend((child, int(origin[row])) for child, origin in zip(bucket.children, labels.origins, strict=True))
    return tree.all_choices(chosen, case)
