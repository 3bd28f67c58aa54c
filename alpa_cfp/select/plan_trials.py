"""Times whole plans (CFP, section 7).

Takes plans with their programs; gives the step time of each. For a step with several micro-batches it times the whole
program, which is a step with one, and the programs of each further micro-batch. Invariant: plans that are timed in one
call run on one mesh, interleaved, if the source of profiles can do that.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from alpa_cfp.database import Profile
from alpa_cfp.search import Solution
from alpa_cfp.select.extrapolated_profile import ShorterPrograms, extrapolated_profile
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.profile_source import ProfileSource
from alpa_cfp.spmd.module.hlo_module import HloModule

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
        profiles: Those of `modules` with the samples that were taken last; empty before they are measured.
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
    def taken_s(self) -> float:
        """What compiling its programs and running them took, as far as they were measured."""
        measured = [each for each in self.profiles if each is not None]
        return sum((each.compile_s or 0.0) + sum(each.samples_s) for each in measured)

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
            self.measure(trials)
            return
        before, profiles = self.step_s(beside), beside.profiles
        self.measure([*trials, beside])
        drift = self.step_s(beside) / before if self.is_timed(beside) else 1.0
        beside.profiles = profiles
        for trial in trials:
            trial.profiles = [None if each is None else _slower(each, 1 / drift) for each in trial.profiles]

    @staticmethod
    def is_timed(trial: PlanTrial) -> bool:
        """Whether the whole program of a plan was timed."""
        return trial.whole is not None and bool(trial.whole.samples_s)

    def step_s(self, trial: PlanTrial) -> float:
        """The step time of a plan whose whole program was measured, from the samples that were taken last.

        If the programs of further micro-batches were not measured, their time is estimated from the whole program.
        """
        whole_s, micro_batch = self.whole_s(trial), trial.profiles[len(trial.own_modules) :]
        measured_s = [each.lower_half_mean_s for each in micro_batch if each is not None and each.samples_s]
        if measured_s and len(measured_s) == len(micro_batch):
            return whole_s + (self.search.costs.micro_batches - 1) * sum(measured_s)
        if self.search.costs.micro_batches > 1:
            self.search.caveats.note(
                "what further micro-batches run could not be measured: it is estimated from the whole program"
            )
        return self.search.costs.step_time_s(trial.solution.choices, whole_s)

    @staticmethod
    def whole_s(trial: PlanTrial) -> float:
        """The time of the whole program of a plan that was measured."""
        assert trial.whole is not None
        return trial.whole.lower_half_mean_s

    def measure(self, trials: Sequence[PlanTrial]) -> None:
        """Runs plans again, as often as a candidate."""
        is_shorter = any(isinstance(trial.program, ShorterPrograms) for trial in trials)
        count = self.samples * (_SHORTER if is_shorter else 1)
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
