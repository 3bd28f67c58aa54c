"""Which of many plans is the fastest, and how many times as long do others take?

Takes whole programs; gives the times of all. They run interleaved in two stages: all, then those that are near the
fastest, more often. Copies of one program that are compiled in processes of their own differ by about 0.7% (standard
deviation) beyond the noise of their samples: so in the second stage each plan has several. The fastest of many is lucky
in what chooses it, so it is chosen by one half of the copies and held against the others by the second half; then the
halves change places. Invariant: no time is compared with one that chose its rival, or of the same copy.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from scipy.stats import spearmanr

from alpa_cfp.profiling import Profiler
from alpa_cfp.select.candidate_costs import Choices
from alpa_cfp.spmd.module.hlo_module import HloModule

# Plans within the first factor of the fastest run again, up to so many, in so many copies.
_CLOSE, _MOST, _COPIES = 1.06, 8, 4
# Predictions are judged by plans within this factor of the fastest.
NEAR = 1.25


@dataclass(frozen=True)
class Judged:
    """The times of plans.

    Attributes:
        seconds: Of each plan that runs, by all of its copies.
        halves: Of those that ran again, by each half of their copies: geometric means.
    """

    seconds: Mapping[Choices, float]
    halves: Mapping[Choices, tuple[float, float]]

    @property
    def fastest(self) -> Choices:
        """The fastest plan, by all copies."""
        return min(self.halves, key=lambda name: math.prod(self.halves[name]))

    def by_fastest(self, names: Iterable[Choices]) -> float:
        """How many times as long as the fastest plan the best of `names` takes; each is chosen by one half."""
        able = [name for name in names if name in self.halves]
        ratios = []
        for chosen_by, judged_by in ((0, 1), (1, 0)):
            own, best = (min(group, key=lambda name: self.halves[name][chosen_by]) for group in (able, self.halves))
            ratios.append(self.halves[own][judged_by] / self.halves[best][judged_by])
        return math.sqrt(math.prod(ratios))


def judge(
    measuring: Callable[[], AbstractContextManager[Profiler]],
    programs: Mapping[Choices, HloModule],
    samples: int,
    keep: Sequence[Sequence[Choices]],
) -> Judged:
    """Times plans.

    Args:
        measuring: What compiles and runs them in a new process each time, and knows of no profile.
        programs: The program of each plan.
        samples: How often each copy runs.
        keep: Groups of plans; the fastest of each group runs again, however slow it is.
    """

    def measured(names: Sequence[Choices]) -> dict[Choices, float]:
        """The seconds of a new copy of those that run."""
        with measuring() as profiler:
            profiles = profiler.measure([programs[name] for name in names], samples)
        both = zip(names, profiles, strict=True)
        return {name: profile.lower_half_mean_s for name, profile in both if profile.samples_s}

    first = measured(list(programs))
    limit_s = _CLOSE * min(first.values())
    kept = {min((each for each in group if each in first), key=first.__getitem__): None for group in keep if group}
    near = [name for name in sorted(first, key=first.__getitem__)[:_MOST] if first[name] <= limit_s]
    again = list(dict.fromkeys([*kept, *near]))
    copies = [measured(again) for _ in range(_COPIES)]

    def mean_s(name: Choices, half: int) -> float:
        return statistics.geometric_mean(each[name] for each in copies[half::2])

    halves = {name: (mean_s(name, 0), mean_s(name, 1)) for name in again}
    return Judged(first | {name: math.sqrt(math.prod(both)) for name, both in halves.items()}, halves)


def near_the_top(pairs: Iterable[tuple[float, float]], speed: float | None = None) -> dict[str, Any]:
    """How predictions order the plans that are near the fastest.

    Args:
        pairs: The predicted and the measured seconds of each plan.
        speed: How many times as long plans took here as they did when predictions learned from them; None if that is
            not known.
    """
    both = list(pairs)
    limit_s = NEAR * min(measured for _, measured in both)
    predicted, measured = zip(*((p, m) for p, m in both if m <= limit_s), strict=True)
    rank = math.nan
    if len(measured) > 2:
        rank = float(spearmanr(predicted, measured)[0])  # pyright: ignore[reportArgumentType]
    found = {"near": len(measured), "rank": None if math.isnan(rank) else rank}
    for name, factor in (("error", 1.0), ("error_at_speed", speed)):
        if factor is not None:
            errors = (abs(factor * p / m - 1) for p, m in zip(predicted, measured, strict=True))
            found[name] = statistics.median(errors)
    return found
