"""Times whole plans; those that are nearly as fast as the fastest one run more often (CFP, section 7).

Takes plans with their programs; gives the step time of each. For a step with several micro-batches it times the whole
program, which is a step with one, and the programs of each further micro-batch. Invariants: plans that are timed in one
call run on one mesh, interleaved, if the source of profiles can do that; every other sample is held out of the choice,
since the fastest of many plans was also lucky in the samples that it was chosen by.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from alpa_cfp.database import Profile
from alpa_cfp.search import Solution
from alpa_cfp.select.extrapolated_profile import CHOOSING, ShorterPrograms, extrapolated_profile, typical_s
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.profile_source import ProfileSource
from alpa_cfp.spmd.module.hlo_module import HloModule

# How many times as often as a candidate plans run when they are first timed.
_FIRST = 1
# The last rounds, in which the fastest plans run side by side: how many times as often as a candidate they run, how
# many times slower than the fastest they are at most, and their greatest number.
_ROUNDS = ((2, 1.08, 6), (4, 1.03, 3))
# How many times as often shorter programs run: extrapolation enlarges their noise, and they take less time.
_SHORTER = 2


@dataclass(eq=False)
class PlanTrial:
    """A plan that is timed.

    Attributes:
        solution: The plan.
        program: The whole program, or the shorter ones that are run for it.
        micro_batch_modules: The programs of each micro-batch but the first; empty if there is one micro-batch, or if
            they are not known.
        profiles: Those of `modules` with the samples that count; empty before they are measured.
        runs: How often the programs have run.
    """

    solution: Solution
    program: HloModule | ShorterPrograms
    micro_batch_modules: Sequence[HloModule]
    profiles: Sequence[Profile | None] = ()
    runs: int = 0

    @property
    def modules(self) -> tuple[HloModule, ...]:
        """All programs."""
        return (*self.own_modules, *self.micro_batch_modules)

    @property
    def own_modules(self) -> tuple[HloModule, ...]:
        """The programs from which the time of the whole program is known."""
        return self.program.modules if isinstance(self.program, ShorterPrograms) else (self.program,)

    @property
    def whole(self) -> Profile | None:
        """The profile of the whole program, maybe extrapolated; None without one."""
        profiles = [each for each in self.profiles[: len(self.own_modules)] if each is not None]
        if not profiles or len(profiles) < len(self.own_modules):
            return None
        if isinstance(self.program, ShorterPrograms):
            return extrapolated_profile(profiles, self.program.missing)
        return profiles[0]

    @property
    def needed_bytes(self) -> int:
        """The memory of the whole program on one device."""
        return 0 if self.whole is None else self.whole.memory_bytes


@dataclass(frozen=True)
class PlanTrials:
    """Times plans against each other.

    Attributes:
        search: The search that found the plans.
        profiles: The source of profiles.
        samples: How often a candidate is run.
    """

    search: PlanSearch
    profiles: ProfileSource
    samples: int

    def time(self, trials: Sequence[PlanTrial], beside: PlanTrial | None = None) -> None:
        """Times plans.

        Args:
            trials: The plans.
            beside: A plan that was timed before and runs beside them: the speed of the machine may have changed since.
        """
        if beside is None or not self.is_timed(beside):
            self._measure(trials, _FIRST)
            return
        before, profiles = self.step_s(beside), beside.profiles
        self._measure([*trials, beside], _FIRST)
        drift = self.step_s(beside) / before if self.is_timed(beside) else 1.0
        beside.profiles = profiles
        for trial in trials:
            trial.profiles = [None if each is None else _slower(each, 1 / drift) for each in trial.profiles]

    def settle(self, trials: Sequence[PlanTrial], budget_bytes: int | None) -> None:
        """Times the fastest plans that fit again, side by side: they first ran at different times.

        What was measured before does not decide between the plans of these rounds; the times of the others are brought
        to the speed of these rounds. A plan that is far ahead runs in the first round alone, so that its time is known
        from enough samples that did not choose it.
        """
        able = [trial for trial in trials if self.is_timed(trial)]
        if budget_bytes is not None:
            able = [trial for trial in able if trial.needed_bytes <= budget_bytes] or able
        for number, (runs, close, most) in enumerate(_ROUNDS):
            before = {id(trial): self.step_s(trial) for trial in able}
            limit_s = close * min(before.values(), default=0.0)
            fastest = sorted(able, key=lambda trial: before[id(trial)])[:most]
            chosen = [trial for trial in fastest if before[id(trial)] <= limit_s]
            if len(chosen) < (2 if number else 1):
                return
            self._measure(chosen, runs)
            changes = [self.step_s(trial) / before[id(trial)] for trial in chosen if self.is_timed(trial)]
            drift = statistics.geometric_mean(changes or [1.0])
            able = [trial for trial in able if self.is_timed(trial)]
            for trial in able:
                if trial not in chosen:
                    trial.profiles = [None if each is None else _slower(each, drift) for each in trial.profiles]

    @staticmethod
    def is_timed(trial: PlanTrial) -> bool:
        """Whether the whole program of a plan was timed."""
        return trial.whole is not None and bool(trial.whole.samples_s)

    def step_s(self, trial: PlanTrial, samples: slice = CHOOSING) -> float:
        """The step time of a plan whose whole program was measured, from some of its samples.

        If the programs of further micro-batches were not measured, their time is estimated from the whole program.
        """
        assert trial.whole is not None
        whole_s, micro_batch = typical_s(trial.whole, samples), trial.profiles[len(trial.own_modules) :]
        measured_s = [typical_s(each, samples) for each in micro_batch if each is not None and each.samples_s]
        if measured_s and len(measured_s) == len(micro_batch):
            return whole_s + (self.search.costs.micro_batches - 1) * sum(measured_s)
        if self.search.costs.micro_batches > 1:
            self.search.caveats.note(
                "what further micro-batches run could not be measured: it is estimated from the whole program"
            )
        return self.search.costs.step_time_s(trial.solution.choices, whole_s)

    def whole_s(self, trial: PlanTrial) -> float:
        """The time of the whole program of a plan that was measured."""
        assert trial.whole is not None
        return typical_s(trial.whole, CHOOSING)

    def _measure(self, trials: Sequence[PlanTrial], runs: int) -> None:
        """Runs plans again, `runs` times as often as a candidate; only these samples count from then on."""
        is_shorter = any(isinstance(trial.program, ShorterPrograms) for trial in trials)
        count = runs * self.samples * (_SHORTER if is_shorter else 1)
        wanted = [trial.runs + count for trial in trials for _ in trial.modules]
        profiles = iter(self.profiles([module for trial in trials for module in trial.modules], wanted))
        for trial in trials:
            # A database may have more samples of one plan than of another.
            trial.profiles = [
                None if profile is None else _only(profile, trial.runs, trial.runs + count)
                for profile in itertools.islice(profiles, len(trial.modules))
            ]
            trial.runs += count


def _only(profile: Profile, first: int, end: int) -> Profile:
    """A profile with some of its samples; with the first ones if these were not taken."""
    return replace(profile, samples_s=profile.samples_s[first:end] or profile.samples_s[:end])


def _slower(profile: Profile, factor: float) -> Profile:
    """A profile as it would be on a machine that is slower by a factor."""
    return replace(profile, samples_s=tuple(factor * each for each in profile.samples_s))
