"""Times of several functions that are to be compared: takes callables, gives back their samples and ratios of them.

Other programs on the machine, its clock and its caches change from second to second, by more than what is to be seen.
So in each round every function runs once, in an order drawn anew: sample i of one function and sample i of another were
taken within the same moment, and the ratio is taken within the round, before anything is averaged. The interval comes
from drawing rounds with replacement (Efron's percentile bootstrap).

While other processes want the same cores, the median also depends on how many threads a program has ready to run,
since the cores are shared out by thread. So there is a ratio of the times in quiet moments too: of the lowest tenth.
CPU time, of all threads of the process, is kept as well: it says how much work there was, whatever else the machine
did. Invariant: with the same seed the order is the same.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BOOTSTRAP_DRAWS = 2000
QUIET_PERCENTILE = 10
# Rounds before the first that counts.
WARMUP = 3


@dataclass(frozen=True, slots=True)
class Samples:
    """What one function took, one number a round, in the order of the rounds.

    Attributes:
        seconds: On the clock.
        cpu_seconds: Of this process' threads together.
    """

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]

    @property
    def min_s(self) -> float:
        return min(self.seconds)

    @property
    def median_s(self) -> float:
        return float(np.median(self.seconds))

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, relative to the median."""
        low, high = np.percentile(self.seconds, (25, 75))
        return float((high - low) / 2 / self.median_s)

    def rounds(self, which: slice) -> "Samples":
        """Those of some rounds: to choose the best of many by some and to measure it by others."""
        return Samples(self.seconds[which], self.cpu_seconds[which])

    def to_json(self) -> dict[str, float | int]:
        """What is kept of the samples, times in milliseconds."""
        return {
            "samples": len(self.seconds),
            "min_ms": round(self.min_s * 1e3, 4),
            "quiet_ms": round(float(np.percentile(self.seconds, QUIET_PERCENTILE)) * 1e3, 4),
            "median_ms": round(self.median_s * 1e3, 4),
            "spread": round(self.spread, 4),
            "median_cpu_ms": round(float(np.median(self.cpu_seconds)) * 1e3, 4),
        }


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times longer one function takes than another, each with its 95% interval.

    Attributes:
        paired: Median over the rounds of the ratio within a round; the number to quote from a machine of one's own.
        quiet: QUIET_PERCENTILE of one by that of the other; the number to quote from a busy machine.
        of_medians: Median of one by median of the other.
        of_minima: Minimum of one by minimum of the other.
        cpu: `paired` of CPU time.
    """

    paired: float
    paired_low: float
    paired_high: float
    quiet: float
    quiet_low: float
    quiet_high: float
    of_medians: float
    of_minima: float
    cpu: float

    def to_json(self) -> dict[str, float]:
        return {name: round(getattr(self, name), 4) for name in self.__slots__}

    @property
    def paired_text(self) -> str:
        return f"{self.paired:.3f} [{self.paired_low:.3f}, {self.paired_high:.3f}]"

    @property
    def quiet_text(self) -> str:
        return f"{self.quiet:.3f} [{self.quiet_low:.3f}, {self.quiet_high:.3f}]"


def interleave(
    functions: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warmup: int = WARMUP,
    seed: int = 0,
    after: Callable[[Any], object] | None = None,
    after_round: Callable[[], object] | None = None,
) -> dict[str, Samples]:
    """Run every function once a round, in random order, and time each run.

    Args:
        functions: By name; what is timed ends when a function returns.
        rounds: How many samples of each.
        warmup: Rounds before the first that counts.
        seed: Of the order.
        after: Called with a function's result, off the clock.
        after_round: Called when a round is over, those before the first that counts included.
    """
    rng = np.random.default_rng(seed)
    names = list(functions)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    gc.collect()
    for number in range(-warmup, rounds):
        for index in rng.permutation(len(names)):
            name = names[index]
            start, cpu_start = time.perf_counter(), time.process_time()
            result = functions[name]()
            taken, cpu_taken = time.perf_counter() - start, time.process_time() - cpu_start
            if after is not None:
                after(result)
            if number >= 0:
                seconds[name].append((taken, cpu_taken))
        if after_round is not None:
            after_round()
    return {name: Samples(*zip(*values, strict=True)) for name, values in seconds.items()}


def pool(copies: Sequence[Samples]) -> Samples:
    """The samples of several copies of one program as those of one.

    Where a program's arrays happen to lie in memory makes it some per cent faster or slower for as long as it lives.

    Args:
        copies: From the same `interleave`; their samples follow each other.
    """
    return Samples(
        tuple(value for copy in copies for value in copy.seconds),
        tuple(value for copy in copies for value in copy.cpu_seconds),
    )


def ratio(of: Samples, to: Samples, *, seed: int = 0) -> Ratio:
    """How many times longer `of` takes than `to`; both from the same `interleave`.

    Raises:
        ValueError: they have different numbers of samples.
    """
    if len(of.seconds) != len(to.seconds):
        raise ValueError(f"samples of different rounds: {len(of.seconds)} and {len(to.seconds)}")
    times, others = np.array(of.seconds), np.array(to.seconds)
    draws = np.random.default_rng(seed).integers(0, len(times), (BOOTSTRAP_DRAWS, len(times)))

    def paired(times: np.ndarray, others: np.ndarray) -> Any:
        return np.median(times / others, axis=-1)

    def quiet(times: np.ndarray, others: np.ndarray) -> Any:
        return np.percentile(times, QUIET_PERCENTILE, axis=-1) / np.percentile(others, QUIET_PERCENTILE, axis=-1)

    paired_interval, quiet_interval = (
        np.percentile(estimate(times[draws], others[draws]), (2.5, 97.5)) for estimate in (paired, quiet)
    )
    return Ratio(
        paired=float(paired(times, others)),
        paired_low=float(paired_interval[0]),
        paired_high=float(paired_interval[1]),
        quiet=float(quiet(times, others)),
        quiet_low=float(quiet_interval[0]),
        quiet_high=float(quiet_interval[1]),
        of_medians=of.median_s / to.median_s,
        of_minima=of.min_s / to.min_s,
        cpu=float(np.median(np.array(of.cpu_seconds) / np.array(to.cpu_seconds))),
    )
