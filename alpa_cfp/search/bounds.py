"""Lower bounds on completing a partial plan: min-sum messages over the bucket tree, for several weightings at once.

Takes a `Tree`, an interval of transient bytes and weights; gives back what any completion costs at least. A *weighting*
(a, b) prices a plan at a * seconds + b * summed bytes, and drops the memory limit: with a multiplier b = lambda >= 0 on
the limit, price - lambda * capacity is a lower bound on the time of every plan that fits (Lagrangian relaxation), and
(0, 1) gives the least summed bytes. Invariant: a bound is never above the true value, but for rounding (`limits` leaves
room).

Transient bytes are a maximum, which no sum bounds well. So everything here is done for plans whose largest transient
lies in an *interval* (low, high]: entries above `high` are excluded, and every plan is charged at least `low`.
"""

from dataclasses import dataclass

import numpy as np

from alpa_cfp.search.order import Bucket, Tree
from alpa_cfp.search.problem import Array

# Room for rounding, relative to a price: sums of a few thousand float64 terms are good to 1e-13.
_SLACK = 1e-11


@dataclass(frozen=True, slots=True)
class Interval:
    """Plans whose largest transient is at most `high` bytes, each charged at least `low`."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Weightings, one a row: what a second and what a byte are worth."""

    second: Array
    byte: Array

    @staticmethod
    def of(multipliers: list[float], *, bytes_alone: bool = True) -> "Weights":
        """(1, lambda) for each multiplier, and (0, 1) as the last row."""
        second = [1.0] * len(multipliers) + [0.0] * bytes_alone
        return Weights(np.array(second), np.array([*multipliers, *[1.0] * bytes_alone]))

    def limits(self, time_s: float, budget_bytes: float) -> Array:
        """The most that a plan may cost, at each weighting, if it takes at most so long and so many bytes."""
        with np.errstate(invalid="ignore"):
            limit = np.where(self.second > 0, self.second * time_s, 0.0) + self.byte * budget_bytes
        return limit + _SLACK * (np.abs(limit) + np.where(self.second > 0, self.byte * abs(budget_bytes), 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class Upward:
    """Prices of all tables and, for each bucket, the least price of what has been eliminated, by separator state.

    `prices[i]` and `messages[i]` have the weightings as leading dim.
    """

    tree: Tree
    weights: Weights
    interval: Interval
    prices: tuple[Array, ...]
    messages: tuple[Array, ...]

    @property
    def least(self) -> Array:
        """The least price of a whole plan at each weighting, without the transient; inf if there is none."""
        return self.messages[-1]


def upward(tree: Tree, interval: Interval, weights: Weights) -> Upward:
    """Sends messages from the first bucket to the last."""
    prices = _prices(tree, interval, weights)
    messages: list[Array] = []
    for bucket in tree.buckets:
        total = _sum(
            [prices[number] for number in bucket.tables] + [_lifted(messages[c], tree, c) for c in bucket.children]
        )
        messages.append(total.min(axis=1))
    return Upward(tree, weights, interval, prices, tuple(messages))


def downward(up: Upward) -> tuple[Array, ...]:
    """For each bucket, by separator state, the least price of everything that its message does not cover."""
    tree, rows = up.tree, len(up.weights.second)
    down: list[Array] = [np.zeros(0)] * len(tree.buckets)
    down[-1] = np.zeros(rows)
    for number in range(len(tree.buckets) - 1, -1, -1):
        bucket = tree.buckets[number]
        if not bucket.children:
            continue
        own = outside(up, bucket, down[number])
        lifted = [_lifted(up.messages[c], tree, c) for c in bucket.children]
        after: list[Array | None] = [None] * len(lifted)  # sums of the later siblings' messages
        for index in range(len(lifted) - 2, -1, -1):
            later = after[index + 1]
            after[index] = lifted[index + 1] if later is None else later + lifted[index + 1]
        before = own
        for index, child in enumerate(bucket.children):
            later = after[index]
            rest = before if later is None else before + later
            kept = tree.buckets[child]
            gone = tuple(1 + dim for dim, variable in enumerate(bucket.scope) if variable not in kept.scope[1:])
            shape = (rows, *kept.separator_sizes)
            down[child] = np.broadcast_to(rest.min(axis=gone, keepdims=True), (rows, *kept.into_parent)).reshape(shape)
            before = before + lifted[index]
    return tuple(down)


def outside(up: Upward, bucket: Bucket, down: Array) -> Array:
    """A bucket's own tables and everything above it, priced over its scope: [weighting, *scope]."""
    return _sum([down[:, None], *(up.prices[number] for number in bucket.tables)])


def lifted_message(up: Upward, child: int) -> Array:
    """A child's message in the shape of its parent's scope."""
    return _lifted(up.messages[child], up.tree, child)


def cheapest_choices(up: Upward, row: int) -> tuple[int, ...] | None:
    """The choices of a plan of least price at one weighting (the first of equals), or None if there is no plan."""
    if not np.isfinite(up.least[row]):
        return None
    tree = up.tree
    chosen: dict[int, int] = {}
    for bucket in reversed(tree.buckets):
        at = [chosen[v] for v in bucket.scope[1:]]
        total = 0.0
        for number in bucket.tables:
            price = up.prices[number]
            total = (
                total
                + price[(row, slice(None), *(c * (size > 1) for c, size in zip(at, price.shape[2:], strict=True)))]
            )
        for child in bucket.children:
            kept = tree.buckets[child].scope[1:]
            message = up.messages[child][row]
            total = total + message[tuple(slice(None) if v == bucket.scope[0] else chosen[v] for v in kept)]
        chosen[bucket.scope[0]] = int(np.argmin(total))
    return tuple(chosen[v] for v in range(len(tree.buckets)))


def _prices(tree: Tree, interval: Interval, weights: Weights) -> tuple[Array, ...]:
    """Prices of all tables, worked out in one go: [weighting, *scope] each."""
    flat = tree.flat
    excluded = ~np.isfinite(flat.time_s) | (flat.transient_bytes > interval.high)
    time = np.where(excluded, 0.0, flat.time_s)  # not inf, which times 0 is NaN
    price = weights.second[:, None] * time + weights.byte[:, None] * flat.summed_bytes
    price[:, excluded] = np.inf
    rows, tables, start = len(price), [], 0
    for table in tree.tables:
        shape = table.time_s.shape
        tables.append(price[:, start : start + table.time_s.size].reshape((rows, *shape)))
        start += table.time_s.size
    return tuple(tables)


def _lifted(message: Array, tree: Tree, child: int) -> Array:
    return message.reshape((message.shape[0], *tree.buckets[child].into_parent))


def _sum(terms: list[Array]) -> Array:
    """Adds small terms before large ones."""
    total, *rest = sorted(terms, key=lambda term: term.size)
    for term in rest:
        total = total + term
    return total
