"""Times of two programs in pairs, so that what else the machine does meets both alike."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Pairs:
    """Times of two programs.

    Attributes:
        own_s, other_s: The median of each.
        ratio: The median of the ratios within the pairs.
        number: The number of pairs.
    """

    own_s: float
    other_s: float
    ratio: float
    number: int


def in_pairs(own: Callable[[], Any], other: Callable[[], Any], budget_s: float, least: int = 5) -> Pairs:
    """Run both in turn, the first one first in every other pair, until `budget_s` has passed.

    Each is called and gives a function without arguments of which one run is timed: what the call makes before (fresh
    arguments) is not.
    """
    times: list[tuple[float, float]] = []
    end = time.monotonic() + budget_s
    for run in (own, other):
        _seconds(run)
    while len(times) < least or time.monotonic() < end:
        if len(times) % 2:
            second, first = _seconds(other), _seconds(own)
        else:
            first, second = _seconds(own), _seconds(other)
        times.append((first, second))
    return Pairs(
        statistics.median(a for a, _ in times),
        statistics.median(b for _, b in times),
        statistics.median(a / b for a, b in times),
        len(times),
    )


def _seconds(prepare: Callable[[], Callable[[], Any]]) -> float:
    run = prepare()
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start
