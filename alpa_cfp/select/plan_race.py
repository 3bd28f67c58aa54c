"""Which of the plans that were timed is the fastest: the nearly fastest ones run side by side until that is clear.

Takes timed plans; gives the step time by which each is chosen, and one that is reported. A single step may take 10%
more or less than another on a machine that is shared, so few runs do not tell plans apart that differ by 2%. The plans
run in rounds; those that are surely slower leave (Maron and Moore (1994), Hoeffding races, here with normal errors),
and the race ends when another plan is not expected to be enough faster than the first to look on (Chick and Inoue
(2001), expected opportunity cost).
The fastest of many was also lucky, so what is reported of it comes from one more round. Invariant: plans that stay to
the end have run in the same rounds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from alpa_cfp.select.plan_trials import PlanTrial, PlanTrials

# How many times slower than the fastest one a plan may be to take part, and the greatest number of plans.
_CLOSE, _MOST = 1.08, 6
# The most rounds. In each a plan runs as often as a candidate: what deviates from round to round does so hardly less if
# rounds are longer.
_ROUNDS = 6
# What times of one round deviate by, relative to each other, and how many measurements of that this stands for.
_DEVIATION, _ASSUMED = 0.03, 2
# A plan leaves that is slower by so many standard errors. The race ends when to take the first plan is expected to lose
# less to any other than this share of the step time for each second that the next round takes, within these bounds.
_SURE, _LOSS_A_SECOND, _LEAST_LOSS, _MOST_LOSS = 2.0, 0.005, 0.005, 0.01
_NORMAL = NormalDist()


@dataclass
class PlanRace:
    """A race of plans.

    Attributes:
        timing: Times them.
        chosen_by_s: The step time of each plan that was timed, by its place: what it is to be chosen by.
        reported_s: The same; of the fastest plan from runs that have no part in `chosen_by_s`, and of others relative
            to it.
    """

    timing: PlanTrials
    chosen_by_s: dict[int, float] = field(default_factory=dict, init=False)
    reported_s: dict[int, float] = field(default_factory=dict, init=False)

    def run(self, trials: Sequence[PlanTrial], budget_bytes: int | None, *, is_short: bool = False) -> None:
        """Runs the race; plans that do not fit into the budget take part only if none does.

        Args:
            trials: The plans, some of which were timed.
            budget_bytes: The memory that a plan may need; None without limit.
            is_short: Whether nothing runs again: the time is over.
        """
        before = {n: math.log(self.timing.step_s(each)) for n, each in enumerate(trials) if self.timing.is_timed(each)}
        if is_short:
            self.chosen_by_s = {n: math.exp(each) for n, each in before.items()}
            self.reported_s = dict(self.chosen_by_s)
            return
        fitting = [n for n in before if budget_bytes is None or trials[n].needed_bytes <= budget_bytes]
        able = sorted(fitting or before, key=before.__getitem__)[:_MOST]
        racing = [n for n in able if before[n] <= before[able[0]] + math.log(_CLOSE)]
        rounds: list[dict[int, float]] = []
        while len(racing) > 1 and len(rounds) < _ROUNDS:
            rounds.append(self._round(trials, racing))
            racing, loss = _not_slower([n for n in racing if n in rounds[-1]], rounds)
            takes_s = sum(sum(each.samples_s) for n in racing for each in trials[n].profiles if each is not None)
            if loss < min(max(_LOSS_A_SECOND * takes_s, _LEAST_LOSS), _MOST_LOSS):
                break
        times = rounds or [before]
        racing.sort(key=lambda n: _mean([each[n] for each in times]))
        last = self._round(trials, racing[:1])
        level = _mean([each[n] for n in racing for each in times]) if racing else 0.0
        now = _mean([last[n] - _mean([each[n] for each in times]) for n in last]) if last else 0.0
        for n in before:
            own = [each for each in rounds if n in each] or [before]
            # How much longer than the last plans did it take in the same rounds?
            more = _mean([each[n] - _mean([each[other] for other in racing]) for each in own]) if racing else before[n]
            self.chosen_by_s[n] = math.exp(level + more)
            self.reported_s[n] = math.exp(last.get(n, level + more + now))

    def _round(self, trials: Sequence[PlanTrial], numbers: Sequence[int]) -> dict[int, float]:
        """Runs plans side by side; gives the logarithm of the step time of each that could be run again."""
        self.timing.measure([trials[n] for n in numbers])
        return {n: math.log(self.timing.step_s(trials[n])) for n in numbers if self.timing.is_timed(trials[n])}


def _not_slower(racing: Sequence[int], rounds: Sequence[dict[int, float]]) -> tuple[list[int], float]:
    """The plans that may be the fastest, and the loss that is expected of the first: the most by which one of the
    others is expected to be faster, where it is faster at all.

    Args:
        racing: Plans that have run in all rounds.
        rounds: The logarithms of their times in each round.
    """
    if not racing:
        return [], 0.0
    times = np.array([[each[n] for n in racing] for each in rounds])
    means = times.mean(axis=0)
    rest = times - means - times.mean(axis=1, keepdims=True) + times.mean()
    free = (len(rounds) - 1) * (len(racing) - 1)
    variance = (_ASSUMED * _DEVIATION**2 + float((rest**2).sum())) / (_ASSUMED + free)
    error = math.sqrt(2 * variance / len(rounds))
    behind = np.sort(means - means.min())[1:] / error
    loss = error * max((_NORMAL.pdf(each) - each * _NORMAL.cdf(-each) for each in behind), default=0.0)
    return [n for n, mean in zip(racing, means, strict=True) if mean <= means.min() + _SURE * error], loss


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
