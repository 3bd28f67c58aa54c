"""The dynamic programme: buckets are eliminated in order, each handing its parent a frontier of labels by state.

Takes bounds for an interval of transients, limits on time and memory, and how many plans are wanted; gives back the
plans inside the limits, as choices. Invariant: unless it says that it was truncated, every one of the `best` cheapest
plans (by seconds, then by bytes) of the interval that is within the limits is among them.

What bounds the frontiers: a label whose price plus the bound on its completion is above a limit at any weighting is
dropped, so what stays is within the gap between the best known plan and the Lagrangian bound. Repeated layers help,
because their sums coincide and one of two equal labels suffices. A `width` truncates what is still too much (then the
result is a heuristic, which tightens the limits of the next, wider run).

Where that gap is wide the frontiers, and the time, can still grow exponentially. A variable joined to every layer moves
all sums at once, so no single multiplier is good for all of its choices; it is branched on (order.py).
"""

from dataclasses import dataclass

import numpy as np

from alpa_cfp.search.bounds import Upward, lifted_message, outside
from alpa_cfp.search.frontier import Index, Labels, frontier, joined, joined_count
from alpa_cfp.search.problem import Array
from alpa_cfp.search.sizing import labels_bytes, run_bytes
from alpa_cfp.search.tree import Bucket, Table, Tree

# Candidates for each label that a run may keep: more are not even compared.
_CANDIDATES = 4


@dataclass(frozen=True, slots=True)
class Eliminated:
    """Plans found, cheapest first; whether any frontier was truncated; the largest frontier's and all labels' count."""

    choices: tuple[tuple[int, ...], ...]
    truncated: bool
    largest: int
    labels: int


def eliminate(
    up: Upward, down: tuple[Array, ...], time_s: float, budget_bytes: float, *, best: int, width: int
) -> Eliminated:
    """Runs it within `time_s` (inclusive, may be inf) and `budget_bytes`, with at most `width` labels a bucket.

    All of `up`'s weightings are in one case, and so are the plans.
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
            rests.append(rests[-1] + lifted_message(up, child))
        flat = [_flat(rest, bucket) for rest in reversed(rests)]
        floor = up.weights.byte * up.interval.low
        entry = np.flatnonzero((flat[0] + floor[:, None] <= limits[:, None]).all(axis=0))
        time, summed, transient = _own(tree, bucket, entry, up.interval.low, case)
        # What `around` already prices of the bucket's own tables must not be counted twice.
        own = _priced(up, time, summed)
        rest_above = [values[:, entry] - own for values in flat]
        row = np.arange(len(entry))
        origins: list[Index] = []
        for index, child in enumerate(bucket.children):
            labels = done[child]
            state = _project(bucket, tree.buckets[child], entry)[row]
            candidates = labels_bytes(joined_count(state, labels), len(limits), len(origins) + 1)
            up.deadline.allocate(rows_bytes + labels_bytes(count, 0, 2) + candidates)
            rows, partner = joined(state, labels)
            row, origins = row[rows], [*(origin[rows] for origin in origins), partner]
            time, summed = time[rows] + labels.time_s[partner], summed[rows] + labels.summed_bytes[partner]
            transient = np.maximum(transient[rows], labels.transient_bytes[partner])
            price = _priced(up, time, summed + transient)
            price += rest_above[index + 1][:, row]
            good = np.flatnonzero((price <= limits[:, None]).all(axis=0))
            good, cut = _narrowed(good, price, up, _CANDIDATES * width, budget_bytes)
            truncated |= cut
            if index + 1 < len(bucket.children) and len(good):  # joins multiply, so thin between them
                good = good[frontier(row[good], time[good], summed[good], transient[good], best)]
                good, cut = _narrowed(good, price, up, width, budget_bytes)
                truncated |= cut
            row, origins = row[good], [origin[good] for origin in origins]
            time, summed, transient = time[good], summed[good], transient[good]
        if not len(row):
            return Eliminated((), truncated, largest, count)
        states = int(np.prod(bucket.separator_sizes, dtype=np.int64))
        choice, state = np.divmod(entry[row], states)
        keep = frontier(state, time, summed, transient, best)
        price = _priced(up, time, summed + transient) + rest_above[-1][:, row]
        keep, cut = _narrowed(keep, price, up, width, budget_bytes)
        truncated |= cut
        done.append(Labels(state, time, summed, transient, choice, tuple(origins)).take(keep))
        largest, count = max(largest, len(keep)), count + len(keep)
    final = done[-1]
    fits = np.flatnonzero(final.summed_bytes + final.transient_bytes <= budget_bytes)
    order = fits[np.lexsort(((final.summed_bytes + final.transient_bytes)[fits], final.time_s[fits]))][:best]
    return Eliminated(tuple(_traced(tree, done, int(last), case) for last in order), truncated, largest, count)


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
    """Follows a label of the last bucket back to every variable's choice."""
    chosen: dict[int, int] = {}
    stack = [(len(tree.buckets) - 1, last)]
    while stack:
        number, row = stack.pop()
        bucket, labels = tree.buckets[number], done[number]
        chosen[bucket.scope[0]] = int(labels.choice[row])
        stack.extend((child, int(origin[row])) for child, origin in zip(bucket.children, labels.origins, strict=True))
    return tree.whole(chosen, case)
