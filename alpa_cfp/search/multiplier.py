"""The Lagrangian multiplier of the memory limit: the price of a byte that gives the best lower bound.

Takes a tree, an interval of transients and the budget; gives the multiplier and the bound that it proves. Invariant:
`bound_s` is at most the time of any plan of the interval that fits (inf if none does).

The dual is concave and piecewise linear in the multiplier, each plan a line. Two plans, one too big and one that fits,
bracket its maximum; the next multiplier is that where their lines cross, until no plan is below the crossing.
Equal layers change their choices at the same multiplier, so the maximum is often a sharp corner: a multiplier close to
the best one is not good enough.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from alpa_cfp.search.bounds import Interval, Weights, cheapest_choices, least_prices, upward
from alpa_cfp.search.limits import Deadline
from alpa_cfp.search.problem import Array, Index
from alpa_cfp.search.tree import Tree

# Crossings are rarely more than ten; each one is a valid bound, so stopping early costs tightness only.
_MOST_CROSSINGS = 20
_CLOSE = 1e-10
_ROUNDING = 1e-12
# Slopes are taken over this share of a multiplier; the bound is then exact to about as much.
_STEP = 1e-6
_SETTLED = 1e-7
_TURNS = 8
# Factors of the next step while the best multiplier is only bounded from below, or only from above.
_REACH = (1.25, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """`multiplier` in seconds per byte; `bound_s`, below which no plan of the interval that fits can be."""

    multiplier: float
    bound_s: float


def relax_quickly(
    tree: Tree,
    interval: Interval,
    budget_bytes: float,
    around: Array,
    cases: Index,
    limit_s: float,
    deadline: Deadline,
) -> tuple[Array, Array]:
    """The bounds of many cases and their multipliers, from a few passes over those that are not settled.

    `around` are the multipliers of `cases` that are tried first; 0 stays 0. A case is settled if its bound is above
    `limit_s`, or cannot be improved further.
    """
    if not len(cases):
        return np.zeros(0), np.zeros(0)
    capacity = budget_bytes - interval.low

    def bounds(rows: Index, at: Array) -> Array:
        """The bounds at each of these rows' multipliers, one a little below and one a little above."""
        grid = at[:, None] * np.array([1.0, 1.0 - _STEP, 1.0 + _STEP])
        least = least_prices(tree, interval, Weights.grid(grid, cases[rows], bytes_alone=False), deadline)
        return _proved(least.reshape(grid.shape), grid * capacity)

    least = least_prices(tree, interval, Weights.grid(around[:, None], cases), deadline).reshape(-1, 2)
    bound_s, multiplier = _proved(least[:, 0], around * capacity), around.copy()
    bound_s[least[:, 1] > capacity] = np.inf
    rows = np.flatnonzero((around > 0) & np.isfinite(bound_s) & (bound_s <= limit_s))
    # Tangents from below and from above the best multiplier: [row, (multiplier, bound, slope)].
    below, above = np.full((2, len(cases), 3), np.nan)
    at = around.copy()
    for turn in range(_TURNS):
        if not len(rows):
            break
        here = at[rows]
        found = bounds(rows, here)
        better = found[:, 0] > bound_s[rows]
        bound_s[rows[better]], multiplier[rows[better]] = found[better, 0], here[better]
        left = (found[:, 0] - found[:, 1]) / (here * _STEP)
        right = (found[:, 2] - found[:, 0]) / (here * _STEP)
        rises, falls = right > 0, left < 0
        below[rows[rises]] = np.stack([here, found[:, 0], right], axis=1)[rises]
        above[rows[falls]] = np.stack([here, found[:, 0], left], axis=1)[falls]
        (x, f, s), (y, g, t) = below[rows].T, above[rows].T
        crossing = (g - f + s * x - t * y) / (s - t)
        open_end = np.isnan(crossing)
        top = f + s * (crossing - x)
        reach = _REACH[min(turn, len(_REACH) - 1)]
        at[rows] = np.where(open_end, np.where(rises, here * reach, here / reach), crossing)
        settled = ~(rises | falls) | (top - bound_s[rows] <= _SETTLED * np.abs(bound_s[rows]))
        rows = rows[~settled & (bound_s[rows] <= limit_s) & (at[rows] > 0)]
    return bound_s, np.where(np.isfinite(bound_s), multiplier, 0.0)


def relax(
    tree: Tree,
    interval: Interval,
    budget_bytes: float,
    evaluate: Callable[[tuple[int, ...]], tuple[float, float]],
    case: int,
    deadline: Deadline,
) -> Relaxed:
    """The best multiplier of a case. `evaluate` gives a plan's seconds and summed bytes (and may record the plan)."""
    capacity = budget_bytes - interval.low
    up = upward(tree, interval, Weights.of([0.0], case), deadline)
    fastest = cheapest_choices(up, 0)
    if fastest is None or up.least[-1] > capacity:
        return Relaxed(0.0, math.inf)
    best = Relaxed(0.0, float(_proved(up.least, np.zeros(2))[0]))
    big_s, big_bytes = evaluate(fastest)
    if big_bytes <= capacity:
        return best
    leanest = cheapest_choices(up, 1)
    assert leanest is not None  # its least price is finite
    fits_s, fits_bytes = evaluate(leanest)
    for _ in range(_MOST_CROSSINGS):
        if big_bytes <= fits_bytes:  # only rounding can make the two meet
            break
        multiplier = max(0.0, (fits_s - big_s) / (big_bytes - fits_bytes))
        up = upward(tree, interval, Weights.of([multiplier], case, bytes_alone=False), deadline)
        bound = float(_proved(up.least, np.array([multiplier * capacity]))[0])
        if bound > best.bound_s:
            best = Relaxed(multiplier, bound)
        crossing = big_s + multiplier * (big_bytes - capacity)
        if bound >= crossing - _CLOSE * (abs(crossing) + multiplier * abs(capacity)):
            break
        choices = cheapest_choices(up, 0)
        assert choices is not None
        time_s, summed_bytes = evaluate(choices)
        if summed_bytes > capacity:
            big_s, big_bytes = time_s, summed_bytes
        else:
            fits_s, fits_bytes = time_s, summed_bytes
    return best


def _proved(least: Array, allowance: Array) -> Array:
    """`least - allowance`, in seconds, less possible rounding: both terms can be far larger than their difference."""
    finite = np.where(np.isfinite(least), least, 0.0)
    return np.where(np.isfinite(least), finite - allowance - _ROUNDING * (np.abs(finite) + np.abs(allowance)), np.inf)
