"""Lower bounds on completing a partial plan: min-sum messages over the bucket tree, for several weightings at once.

Takes a `Tree`, an interval of transient bytes and weights; gives lower bounds on the price of any completion. A
*weighting* (a, b) prices a plan at a * seconds + b * summed bytes, and drops the memory limit: with a multiplier
b = lambda >= 0 on the limit, price - lambda * capacity is a lower bound on the time of every plan that fits (Lagrangian
relaxation), and (0, 1) gives the least summed bytes. Invariant: a bound is never above the true value, but for rounding
(`limits` leaves room).

Transient bytes are a maximum, which no sum bounds well. So everything here is done for plans whose largest transient is
in an *interval* (low, high]: entries above `high` are excluded, and every plan is charged at least `low`.

Each weighting belongs to a *case*, a choice for each hub (tree.py); many cases are bounded in one pass.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from alpa_cfp.search.limits import Deadline, bounds_bytes
from alpa_cfp.search.problem import Array, Index
from alpa_cfp.search.tree import Bucket, Table, Tree

# Room for rounding, relative to a price: sums of a few thousand float64 terms are good to 1e-13.
_SLACK = 1e-11
# Prices computed at once: enough to hide the overhead of a call, few enough for the cache and the memory.
_AT_ONCE = 2**21


@dataclass(frozen=True, slots=True)
class Interval:
    """Plans whose largest transient is at most `high` bytes, each charged at least `low`."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Weightings, one per row: the price of a second, the price of a byte, and the case."""

    second: Array
    byte: Array
    case: Index

    @staticmethod
    def of(multipliers: list[float], case: int, *, bytes_alone: bool = True) -> "Weights":
        """(1, lambda) for each multiplier, and (0, 1) as the last row, all in one case."""
        return Weights.grid(np.array([multipliers]), np.array([case]), bytes_alone=bytes_alone)

    @staticmethod
    def grid(multipliers: Array, cases: Index, *, bytes_alone: bool = True) -> "Weights":
        """(1, lambda) for each of a case's multipliers ([case, multiplier]), then (0, 1); then the next case's."""
        second = np.pad(np.ones_like(multipliers), ((0, 0), (0, int(bytes_alone))))
        byte = np.pad(multipliers, ((0, 0), (0, int(bytes_alone))), constant_values=1.0)
        return Weights(second.ravel(), byte.ravel(), np.repeat(cases, second.shape[1]))

    def rows(self, first: int, last: int) -> "Weights":
        """The rows from `first` to before `last`."""
        return Weights(self.second[first:last], self.byte[first:last], self.case[first:last])

    def limits(self, time_s: float, budget_bytes: float) -> Array:
        """At each weighting the highest price of a plan that takes at most `time_s` and `budget_bytes`."""
        with np.errstate(invalid="ignore"):
            limit = np.where(self.second > 0, self.second * time_s, 0.0) + self.byte * budget_bytes
        return limit + _SLACK * (np.abs(limit) + np.where(self.second > 0, self.byte * abs(budget_bytes), 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class Upward:
    """Prices of all tables and, for each bucket, the least price of what has been eliminated, by separator state.

    `prices[i]`, `by_case[i]` and `messages[i]` have the weightings as leading dim.
    """

    tree: Tree
    weights: Weights
    interval: Interval
    prices: tuple[Array, ...]
    by_case: tuple[Array, ...]
    messages: tuple[Array, ...]
    deadline: Deadline

    @property
    def least(self) -> Array:
        """The least price of a whole plan at each weighting, without the transient; inf if there is none."""
        return self.messages[-1]

    def own(self, bucket: Bucket) -> list[Array]:
        """The prices of a bucket's own tables."""
        return [*(self.prices[n] for n in bucket.tables), *(self.by_case[n] for n in bucket.by_case)]


def upward(tree: Tree, interval: Interval, weights: Weights, deadline: Deadline) -> Upward:
    """Sends messages from the first bucket to the last."""
    deadline.allocate(bounds_bytes(tree, len(weights.second)))
    messages: list[Array] = []
    prices = _prices(tree.flat, [table.time_s.shape for table in tree.tables], interval, weights)
    flat = Table(*(part[weights.case] for part in tree.flat_by_case.parts))
    by_case = _prices(flat, [table.time_s.shape[1:] for table in tree.by_case], interval, weights)
    up = Upward(tree, weights, interval, prices, by_case, (), deadline)
    for bucket in tree.buckets:
        deadline.check()
        total = _sum([*up.own(bucket), *(lifted(messages[c], tree, c) for c in bucket.children)])
        messages.append(total.min(axis=1))
    return replace(up, messages=tuple(messages))


def least_prices(tree: Tree, interval: Interval, weights: Weights, deadline: Deadline) -> Array:
    """The least price of a whole plan at each of many weightings, without the transient."""
    entries = tree.flat.time_s.size, tree.flat_by_case.time_s.shape[-1]
    widest = max(*entries, *(math.prod(bucket.sizes) for bucket in tree.buckets))
    step = max(1, _AT_ONCE // widest)
    # Fewer at once give the same bounds, in less memory.
    one, two = (bounds_bytes(tree, rows) for rows in (1, 2))
    step = max(1, min(step, 1 + int((deadline.memory_bytes - one) / max(two - one, 1.0))))
    rows = range(0, len(weights.second), step)
    parts = [upward(tree, interval, weights.rows(first, first + step), deadline).least for first in rows]
    return np.concatenate(parts)


def downward(up: Upward) -> tuple[Array, ...]:
    """For each bucket, by separator state, the least price of everything that its message does not cover."""
    tree, rows = up.tree, len(up.weights.second)
    down: list[Array] = [np.zeros(0)] * len(tree.buckets)
    down[-1] = np.zeros(rows)
    for number in range(len(tree.buckets) - 1, -1, -1):
        bucket = tree.buckets[number]
        if not bucket.children:
            continue
        up.deadline.check()
        own = outside(up, bucket, down[number])
        messages = [lifted(up.messages[c], tree, c) for c in bucket.children]
        after: list[Array | None] = [None] * len(messages)  # sums of the later siblings' messages
        for index in range(len(messages) - 2, -1, -1):
            later = after[index + 1]
            after[index] = messages[index + 1] if later is None else later + messages[index + 1]
        before = own
        for index, child in enumerate(bucket.children):
            later = after[index]
            rest = before if later is None else before + later
            below = tree.buckets[child]
            minimised = tuple(1 + dim for dim, v in enumerate(bucket.scope) if v not in below.scope[1:])
            least = rest.min(axis=minimised, keepdims=True)
            down[child] = np.broadcast_to(least, (rows, *below.into_parent)).reshape(rows, *below.separator_sizes)
            before = before + messages[index]
    return tuple(down)


def outside(up: Upward, bucket: Bucket, down: Array) -> Array:
    """A bucket's own tables and everything above it, priced over its scope: [weighting, *scope]."""
    return _sum([down[:, None], *up.own(bucket)])


def lifted(message: Array, tree: Tree, child: int) -> Array:
    """A child's message in the shape of its parent's scope."""
    return message.reshape((message.shape[0], *tree.buckets[child].into_parent))


def cheapest_choices(up: Upward, row: int) -> tuple[int, ...] | None:
    """The choices of a plan of least price at one weighting (the first of equals), or None if there is no plan."""
    if not np.isfinite(up.least[row]):
        return None
    tree = up.tree
    chosen: dict[int, int] = {}
    for bucket in reversed(tree.buckets):
        at = [chosen[v] for v in bucket.scope[1:]]
        total = 0.0
        for price in up.own(bucket):
            entry = tuple(c * (size > 1) for c, size in zip(at, price.shape[2:], strict=True))
            total = total + price[(row, slice(None), *entry)]
        for child in bucket.children:
            separator = tree.buckets[child].scope[1:]
            message = up.messages[child][row]
            total = total + message[tuple(slice(None) if v == bucket.scope[0] else chosen[v] for v in separator)]
        chosen[bucket.scope[0]] = int(np.argmin(total))
    return tree.all_choices(chosen, int(up.weights.case[row]))


def fastest_choices(tree: Tree, deadline: Deadline) -> tuple[int, ...]:
    """The choices of the fastest plan, whatever its memory (the first of equals): one pass, in each case at once.

    Every variable must have a choice that is not excluded.
    """
    everything, cases = Interval(0.0, math.inf), np.arange(len(tree.cases))
    weights = Weights.grid(np.zeros((len(cases), 1)), cases, bytes_alone=False)
    if len(cases) > 1:
        best = int(least_prices(tree, everything, weights, deadline).argmin())
        weights = weights.rows(best, best + 1)
    choices = cheapest_choices(upward(tree, everything, weights, deadline), 0)
    assert choices is not None
    return choices


def _prices(flat: Table, shapes: list[tuple[int, ...]], interval: Interval, weights: Weights) -> tuple[Array, ...]:
    """Prices of the tables that are stored in a row in `flat`: [weighting, *scope] each."""
    excluded = flat.transient_bytes > interval.high
    price = weights.second[:, None] * flat.time_s + weights.byte[:, None] * flat.summed_bytes
    price[np.broadcast_to(excluded, price.shape)] = np.inf
    tables, start = [], 0
    for shape in shapes:
        size = math.prod(shape)
        tables.append(price[:, start : start + size].reshape((len(price), *shape)))
        start += size
    return tuple(tables)


def _sum(terms: list[Array]) -> Array:
    """Adds small terms before large ones."""
    total, *rest = sorted(terms, key=lambda term: term.size)
    for term in rest:
        total = total + term
    return total
