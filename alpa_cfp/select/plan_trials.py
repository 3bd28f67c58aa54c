"""Run whole plans side by side, the nearer they are to each other the more often (CFP, section 7).

Takes plans with their programs; gives what a step takes by each. Of a step with several micro-batches the whole program
is run, which is a step of one, and what each further micro-batch runs. Invariants: all plans of a race run on one mesh,
interleaved, if the profiles' source can do that; every other sample has no part in who wins, since the fastest of many
was also lucky in what it was chosen by.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from alpa_cfp.database import Profile
from alpa_cfp.search import Solution
from alpa_cfp.select.plan_search import PlanSearch, Profiles
from alpa_cfp.spmd.module.hlo_module import HloModule

# How many times as often as a candidate each plan has run after a heat, and by what factor it may be slower than the
# fastest one to be in the next. Runs of one program differ by 5% on a quiet machine.
_ROUNDS = ((3, 1.08), (9, 1.04), (27, 1.02))
# Samples by which plans are chosen, and those by which it is said what the chosen one takes.
CHOOSING, HELD_OUT = slice(0, None, 2), slice(1, None, 2)


@dataclass
class PlanTrial:
    """A plan in the race.

    Attributes:
        solution: The plan.
        module: The whole program.
        further: What each micro-batch but the first runs; nothing where there is one, or where that is not known.
        profiles: Those of the whole and of `further`; nothing before they are measured.
    """

    solution: Solution
    module: HloModule
    further: Sequence[HloModule]
    profiles: Sequence[Profile | None] = ()

    @property
    def modules(self) -> tuple[HloModule, ...]:
        """All that is run."""
        return (self.module, *self.further)

    @property
    def whole(self) -> Profile | None:
        """The profile of the whole program; None where there is none to be had."""
        return self.profiles[0] if self.profiles else None

    @property
    def needed_bytes(self) -> int:
        """What a device needs by the whole program."""
        return 0 if self.whole is None else self.whole.memory_bytes


@dataclass(frozen=True)
class PlanTrials:
    """How plans race.

    Attributes:
        choosing: What is known of their parts.
        profiles: Where profiles come from.
        samples: How often a candidate is run.
    """

    choosing: PlanSearch
    profiles: Profiles
    samples: int

    def run(self, racers: Sequence[PlanTrial], budget_bytes: int | None) -> None:
        """Measure all, and those again that are nearly as fast as the fastest one that fits into the budget."""
        for times, within in _ROUNDS:
            self._measure(racers, times * self.samples)
            able = [racer for racer in racers if racer.whole is not None and racer.whole.samples_s]
            if budget_bytes is not None:
                able = [racer for racer in able if racer.needed_bytes <= budget_bytes] or able
            limit = within * min(map(self.step_s, able), default=0.0)
            racers = [racer for racer in able if self.step_s(racer) <= limit]
            if len(racers) < 2:
                break

    def step_s(self, racer: PlanTrial, samples: slice = CHOOSING) -> float:
        """What a step takes by a plan whose whole program was measured, by some of its samples.

        Where what further micro-batches run was not, it is estimated what of the whole is done once a step.
        """
        assert racer.whole is not None
        whole_s, further = _typical_s(racer.whole, samples), racer.profiles[1:]
        measured_s = [_typical_s(each, samples) for each in further if each is not None and each.samples_s]
        if measured_s and len(measured_s) == len(further):
            return whole_s + (self.choosing.micro_batches - 1) * sum(measured_s)
        if self.choosing.micro_batches > 1:
            self.choosing.caveats.note(
                "what further micro-batches run could not be measured: it is estimated from the whole program"
            )
        return self.choosing.step_time_s(racer.solution.choices, whole_s)

    def _measure(self, racers: Sequence[PlanTrial], samples: int) -> None:
        profiles = iter(self.profiles([module for racer in racers for module in racer.modules], samples))
        for racer in racers:
            # The same for a database that has more of one than of another.
            racer.profiles = [
                None if profile is None else replace(profile, samples_s=profile.samples_s[:samples])
                for profile in itertools.islice(profiles, len(racer.modules))
            ]


def _typical_s(profile: Profile, samples: slice) -> float:
    """The typical time of some of the samples; of all where there is but one."""
    return replace(profile, samples_s=profile.samples_s[samples] or profile.samples_s).lower_half_mean_s
