"""Times of several functions that are to be compared: takes callables, gives back their samples and ratios of them.

Other programs on the machine, its clock and its caches change from second to second, by more than what is to be seen.
So in each round every function runs once, in an order drawn anew: sample i of one function and sample i of another were
taken within the same moment, and what a round does to all of them is taken off before anything is averaged. Where
arrays happen to lie in memory makes a compiled program some per cent faster or slower for as long as it lives, which no
number of rounds averages out: so there are several copies of each, and an interval is that of so few copies (Welch's
t). Of single copies it comes from drawing rounds with replacement (Efron's percentile bootstrap), and does not cover
that.

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
from scipy import stats

BOOTSTRAP_DRAWS = 2000
QUIET_PERCENTILE = 10
# Rounds before the first that counts.
WARMUP = 3


@dataclass(frozen=True, slots=True)
class Samples:
    """The times of one function, one number a round, in the order of the rounds.

    Attributes:
        seconds: Wall-clock time.
        cpu_seconds: CPU time of all threads of this process.
        copies: The number of copies of the function; their samples follow each other, equally many of each.
    """

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    copies: int = 1

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

        def of(values: Sequence[float]) -> tuple[float, ...]:
            return tuple(value for row in np.reshape(values, (self.copies, -1)) for value in row[which].tolist())

        return Samples(of(self.seconds), of(self.cpu_seconds), self.copies)

    def to_json(self) -> dict[str, float | int]:
        """The samples in summary, times in milliseconds."""
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
        paired: Of the medians of what they took beside the others in the round, copies averaged; the number to quote
            from a machine of one's own.
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
    return {name: _samples(values) for name, values in seconds.items()}


def _samples(values: Sequence[tuple[float, float]]) -> Samples:
    seconds, cpu_seconds = zip(*values, strict=True)
    return Samples(seconds, cpu_seconds)


def pool(copies: Sequence[Samples]) -> Samples:
    """The samples of several copies of one program as those of one.

    Where a program's arrays happen to lie in memory makes it some per cent faster or slower for as long as it lives.

    Args:
        copies: From the same `interleave`; their samples follow each other.
    """
    return Samples(
        tuple(value for copy in copies for value in copy.seconds),
        tuple(value for copy in copies for value in copy.cpu_seconds),
        len(copies),
    )


def ratio(of: Samples, to: Samples, *, seed: int = 0) -> Ratio:
    """How many times longer `of` takes than `to`; both from the same `interleave`.

    Raises:
        ValueError: they have different numbers of samples.
    """
    if (len(of.seconds), of.copies) != (len(to.seconds), to.copies):
        raise ValueError(f"samples of different rounds: {len(of.seconds)} and {len(to.seconds)}")
    times, others = (np.log(np.reshape(each.seconds, (each.copies, -1))) for each in (of, to))
    # What a round does to all. It must not be seen in a low percentile, for which quiet rounds are what is wanted.
    moment = (times.mean(axis=0) + others.mean(axis=0)) / 2
    estimate = _over_rounds if of.copies == 1 else _over_copies
    return Ratio(
        *estimate(times - moment, others - moment, 50, seed),
        *estimate(times, others, QUIET_PERCENTILE, seed),
        of_medians=of.median_s / to.median_s,
        of_minima=of.min_s / to.min_s,
        cpu=float(np.median(np.array(of.cpu_seconds) / np.array(to.cpu_seconds))),
    )


def _over_copies(times: np.ndarray, others: np.ndarray, percentile: float, seed: int) -> tuple[float, float, float]:
    """Ratio and interval of (copies, rounds) logarithms: each copy is one number, its percentile over the rounds."""
    del seed
    of, to = np.percentile(times, percentile, axis=1), np.percentile(others, percentile, axis=1)
    found = float(np.exp(of.mean() - to.mean()))
    if np.ptp(of) == np.ptp(to) == 0:
        return found, found, found
    interval = stats.ttest_ind(of, to, equal_var=False).confidence_interval(0.95)
    return found, float(np.exp(interval.low)), float(np.exp(interval.high))


def _over_rounds(times: np.ndarray, others: np.ndarray, percentile: float, seed: int) -> tuple[float, float, float]:
    """Ratio and interval of one copy of each: rounds are drawn."""
    rounds = times.shape[1]
    draws = np.random.default_rng(seed).integers(0, rounds, (BOOTSTRAP_DRAWS, rounds))

    def estimate(draw: Any) -> Any:
        of, to = times[0][draw], others[0][draw]
        return np.exp(np.percentile(of, percentile, axis=-1) - np.percentile(to, percentile, axis=-1))

    low, high = np.percentile(estimate(draws), (2.5, 97.5))
    return float(estimate(np.arange(rounds))), float(low), float(high)
