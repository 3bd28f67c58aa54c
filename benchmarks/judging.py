"""Which of many plans is the fastest, and how many times as long do others take?

Takes whole programs; gives the times of all. They run interleaved in two stages: all, then those that are near the
fastest, more often. The fastest of many is lucky in the samples that choose it, so it is chosen by one half of the
samples and held against the others by the second half; then the halves change places. Invariant: no time is compared
with one of the samples that chose its rival.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scipy.stats import spearmanr

from alpa_cfp.database import Profile
from alpa_cfp.profiling import Profiler
from alpa_cfp.select.candidate_costs import Choices
from alpa_cfp.spmd.module.hlo_module import HloModule

# Plans within the first factor of the fastest run again, up to so many, so many times as often.
_CLOSE, _MOST, _AGAIN = 1.06, 8, 2
# Predictions are judged by plans within this factor of the fastest.
NEAR = 1.25


@dataclass(frozen=True)
class Judged:
    """The times of plans.

    Attributes:
        seconds: Of each plan that runs, by all of its samples.
        halves: Of those that ran again, by each half of these samples.
    """

    seconds: Mapping[Choices, float]
    halves: Mapping[Choices, tuple[float, float]]

    @property
    def fastest(self) -> Choices:
        """The fastest plan, by all samples."""
        return min(self.halves, key=lambda name: sum(self.halves[name]))

    def by_fastest(self, names: Iterable[Choices]) -> float:
        """How many times as long as the fastest plan the best of `names` takes; each is chosen by one half."""
        able = [name for name in names if name in self.halves]
        ratios = []
        for chosen_by, judged_by in ((0, 1), (1, 0)):
            own, best = (min(group, key=lambda name: self.halves[name][chosen_by]) for group in (able, self.halves))
            ratios.append(self.halves[own][judged_by] / self.halves[best][judged_by])
        return math.sqrt(math.prod(ratios))


def judge(
    measuring: Profiler, programs: Mapping[Choices, HloModule], samples: int, keep: Sequence[Sequence[Choices]]
) -> Judged:
    """Times plans.

    Args:
        measuring: Runs them.
        programs: The program of each plan.
        samples: How often each runs in the first stage.
        keep: Groups of plans; the fastest of each group runs again, however slow it is.
    """
    first = {
        name: _seconds(profile)
        for name, profile in zip(programs, measuring.measure(list(programs.values()), samples), strict=True)
        if profile.samples_s
    }
    limit_s = _CLOSE * min(first.values())
    kept = {min((each for each in group if each in first), key=first.__getitem__): None for group in keep if group}
    near = [name for name in sorted(first, key=first.__getitem__)[:_MOST] if first[name] <= limit_s]
    again = list(dict.fromkeys([*kept, *near]))
    total = (1 + _AGAIN) * samples
    profiles = measuring.measure([programs[name] for name in again], [total] * len(again))
    later = [replace(profile, samples_s=profile.samples_s[samples:total]) for profile in profiles]
    halves = {name: (_seconds(profile, 0), _seconds(profile, 1)) for name, profile in zip(again, later, strict=True)}
    return Judged(first | {name: statistics.mean(both) for name, both in halves.items()}, halves)


def near_the_top(pairs: Iterable[tuple[float, float]]) -> dict[str, Any]:
    """How predictions order the plans that are near the fastest.

    Args:
        pairs: The predicted and the measured seconds of each plan.
    """
    both = list(pairs)
    limit_s = NEAR * min(measured for _, measured in both)
    predicted, measured = zip(*((p, m) for p, m in both if m <= limit_s), strict=True)
    rank = math.nan
    if len(measured) > 2:
        rank = float(spearmanr(predicted, measured)[0])  # pyright: ignore[reportArgumentType]
    errors = [abs(p / m - 1) for p, m in zip(predicted, measured, strict=True)]
    return {"near": len(measured), "rank": None if math.isnan(rank) else rank, "error": statistics.median(errors)}


def _seconds(profile: Profile, half: int | None = None) -> float:
    samples = profile.samples_s if half is None else profile.samples_s[half::2]
    return replace(profile, samples_s=samples).lower_half_mean_s
