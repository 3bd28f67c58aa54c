"""The price of a byte that bounds a search best: the Lagrangian multiplier of the memory limit.

Takes a tree, an interval of transients and the bytes left for sums; gives back the multiplier, the bound that it proves
and the plans met on the way. Invariant: `bound_s` is at most the time of any plan of the interval that fits (inf if
none does).

The dual is concave and piecewise linear in the multiplier, each plan a line. Two plans, one too big and one that fits,
bracket its maximum; where their lines cross is the next multiplier, until the plan found there lies on the crossing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from alpa_cfp.search.bounds import Interval, Weights, cheapest_choices, upward
from alpa_cfp.search.order import Tree
from alpa_cfp.search.problem import Array

# Crossings are rarely more than ten; each one is a valid bound, so stopping early costs tightness only.
_MOST_CROSSINGS = 20
_CLOSE = 1e-10
_ROUNDING = 1e-12
_FACTORS = (0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """`multiplier` in seconds per byte; `bound_s`, below which no plan of the interval that fits can be."""

    multiplier: float
    bound_s: float


def relax_quickly(tree: Tree, interval: Interval, budget_bytes: float, around: float) -> Relaxed:
    """A bound from two passes: multipliers near a known one, then near the best of these."""
    capacity = budget_bytes - interval.low
    multipliers = [0.0, *(around * factor for factor in _FACTORS)] if around else [0.0]
    best = Relaxed(0.0, -math.inf)
    for _ in range(2 if around else 1):
        up = upward(tree, interval, Weights.of(multipliers))
        if not up.least[-1] <= capacity:
            return Relaxed(0.0, math.inf)
        bounds = _proved(up.least[:-1], up.weights.byte[:-1] * capacity)
        at = int(np.argmax(bounds))
        if bounds[at] > best.bound_s:
            best = Relaxed(multipliers[at], float(bounds[at]))
        below, above = multipliers[max(at - 1, 0)], multipliers[min(at + 1, len(multipliers) - 1)]
        multipliers = [float(multiplier) for multiplier in np.linspace(below, above, 9)[1:-1]]
    return best


def relax(
    tree: Tree,
    interval: Interval,
    budget_bytes: float,
    evaluate: Callable[[tuple[int, ...]], tuple[float, float]],
) -> Relaxed:
    """The best multiplier. `evaluate` gives a plan's seconds and summed bytes (and may keep the plan)."""
    capacity = budget_bytes - interval.low
    up = upward(tree, interval, Weights.of([0.0]))
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
        up = upward(tree, interval, Weights.of([multiplier], bytes_alone=False))
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
    """The bound, in seconds, less what rounding may have added: both terms can be far larger than their difference."""
    return least - allowance - _ROUNDING * (np.abs(least) + np.abs(allowance))
