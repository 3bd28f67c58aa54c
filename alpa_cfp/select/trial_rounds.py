"""Runs plans of one program whole, round after round, until none is expected to be enough faster (CFP, section 7).

Takes the best predicted plans; gives them, hand-written ones and others that the search then expects to be faster, each
with what it took. Times of blocks do not add up to the step exactly: what each round took corrects the search for the
next one (`exploration`). The nearly fastest plans of all rounds run side by side at the end (`plan_race`). Invariant:
the same profiles give the same plans.
"""

import logging
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.candidates.block_candidates import BlockCandidates
from alpa_cfp.quantities import ordinal
from alpa_cfp.search import MemoryBudgetError, Solution
from alpa_cfp.select.baselines import DATA_PARALLEL, baselines
from alpa_cfp.select.candidate_costs import Choices
from alpa_cfp.select.exploration import FIRST_GAIN, prospects, worthwhile
from alpa_cfp.select.extrapolated_profile import ShorterPrograms
from alpa_cfp.select.measured_plan import MeasuredPlan, measured_plan
from alpa_cfp.select.plan_race import PlanRace
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.plan_trials import PlanTrial, PlanTrials
from alpa_cfp.select.profile_source import ProfileSource
from alpa_cfp.select.search_caveats import warn_of_time
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh

logger = logging.getLogger(__name__)

# A baseline that is predicted to be slower than the best plan by more than the first factor is not timed; of plain data
# parallelism, by which every plan is judged, by more than the last. To partition the whole program of one tells more
# than its blocks do, but not so much that it is worth it beyond the second factor.
_PLAUSIBLE, _WORTH_A_LOOK, _PLAUSIBLE_DATA_PARALLEL = 1.15, 1.3, 1.5
# The most rounds after the first one, and how many plans are then timed at once.
_CORRECTIONS, _AT_ONCE = 4, 3
_NO_TIME = "plans that could be the best were not timed end to end; the fastest so far is taken"


@dataclass(frozen=True)
class TrialRounds:
    """Runs plans of one program whole.

    Attributes:
        blocks: The blocks of the program.
        block_candidates: The candidates of each block.
        mesh: The logical mesh.
        search: The search for plans.
        profiles: The source of profiles.
        planned: Gives the partitioned program of some choices.
        micro_batch_programs: Gives the partitioned programs that are run for each micro-batch but the first, from the
            whole program; none if there is one micro-batch, or if they are not known. Their time is estimated then.
        count: The number of best predicted plans that are run at first.
        samples: How often candidates are run.
        has_baselines: Whether plans that people write by hand are run, too.
        shorter: Gives the shorter programs that are run for some choices in the place of the whole one; None if that
            one is run.
        expect: Called with programs that will be run next, which may be compiled meanwhile.
        tried: The plans that were run end to end, by their choices.
    """

    blocks: Blocks
    block_candidates: Sequence[BlockCandidates]
    mesh: LogicalMesh
    search: PlanSearch
    profiles: ProfileSource
    planned: Callable[[Sequence[int]], HloModule]
    micro_batch_programs: Callable[[HloModule], Sequence[HloModule]]
    count: int
    samples: int
    has_baselines: bool = True
    shorter: Callable[[Sequence[int]], ShorterPrograms | None] = lambda choices: None
    expect: Callable[[Sequence[HloModule]], None] = lambda programs: None
    tried: dict[Choices, MeasuredPlan] = field(default_factory=dict, init=False, compare=False, repr=False)
    _trials: dict[Choices, PlanTrial] = field(default_factory=dict, init=False, compare=False, repr=False)

    def expect_data_parallel(self) -> None:
        """Has data parallelism, which is tried in nearly any case, compiled while the search goes on."""
        self.search.measure_candidates(None)
        if self.has_baselines and not self.search.costs.budget.is_over:
            plan = self._by_hand().get(DATA_PARALLEL)
            if plan is not None and math.isfinite(plan.time_s):
                self.search.look_at(plan.choices)
                self._trial(plan)

    def run(self, found: Sequence[Solution], budget_bytes: int | None = None, surely: int = 1) -> list[MeasuredPlan]:
        """Runs the first plans of `found` and data parallelism whole, then what is worth it, knowing what these take.

        These are others of `found`, baselines, and what the search finds then. It ends when none of them is expected to
        be enough faster than those that have run (`exploration`).

        Args:
            found: Plans, the best predicted one first.
            budget_bytes: The memory that others may be predicted to need; None without limit.
            surely: The number of plans of `found` that run in any case.
        """
        names = {plan.choices: _rank_name(number) for number, plan in enumerate(found, start=1)}
        plans = {plan.choices: plan for plan in found}
        first = list(found[:surely])
        for plan in first:  # compiled while baselines are looked at
            self._trial(plan)
        for name, plan in self._plausible(found[0].time_s, budget_bytes).items():
            names[plan.choices] = f"{names[plan.choices]} ({name})" if plan.choices in names else name
            plans.setdefault(plan.choices, plan)
            if name == DATA_PARALLEL and plan.choices not in {each.choices for each in first}:
                first.append(plan)
        trials = {plan.choices: self._trial(plan) for plan in first}
        timing = PlanTrials(self.search, self.profiles, self.samples)
        new = list(trials.values())
        if self.count > surely and math.isfinite(found[0].time_s) and not self.search.costs.budget.is_over:
            # To look at more plans takes time, and those that were looked at already are promising, too.
            most = self.count - surely
            searches = len(plans) - len(trials) < most
            more = prospects(
                self.search, list(trials), budget_bytes, most, plans, searches=searches, least_gain=FIRST_GAIN
            )
            new += self._more_trials(more.plans, trials, names, lambda rank: _rank_name(len(found) + rank))
        misses = 0
        for number in range(_CORRECTIONS + 1):
            before_s = self._fastest_s(timing, trials.values())
            self._time(timing, new, next(iter(trials.values())))
            misses = misses + 1 if number and self._fastest_s(timing, trials.values()) >= before_s else 0
            if self.search.costs.budget.is_over:
                warn_of_time(self.search.caveats, _NO_TIME)
                break
            if number == _CORRECTIONS:
                break
            better = self._better(timing, trials, plans, budget_bytes, misses)
            if not better:
                break
            since = f"from {len(trials)} timed plans"
            new = self._more_trials(better, trials, names, lambda rank, since=since: f"{_rank_name(rank)} {since}")
        race, runners = PlanRace(timing), list(trials.values())
        race.run(runners, budget_bytes, is_short=self.search.costs.budget.is_over)
        tried = [
            measured_plan(race, number, trial, names[trial.solution.choices]) for number, trial in enumerate(runners)
        ]
        self.tried.update({each.solution.choices: each for each in tried})
        return tried

    def _more_trials(
        self,
        choices: Sequence[Choices],
        trials: dict[Choices, PlanTrial],
        names: dict[Choices, str],
        name_of: Callable[[int], str],
    ) -> list[PlanTrial]:
        """Trials of more plans, added to those that are there; a plan without a name gets one by its rank of these."""
        found = sorted(map(self.search.predicted, choices), key=lambda plan: (plan.time_s, plan.choices))
        unnamed = [plan.choices for plan in found if plan.choices not in names]
        names |= {each: name_of(rank) for rank, each in enumerate(unnamed, start=1)}
        new = {plan.choices: self._trial(plan) for plan in found}
        trials |= new
        return list(new.values())

    def _plausible(self, best_s: float, budget_bytes: int | None) -> dict[str, Solution]:
        """The baselines that could be the best plan, where that is predicted to take `best_s`, and that fit."""
        found: dict[str, Solution] = {}
        for name, plan in self.baselines(_WORTH_A_LOOK * best_s).items():
            limit_s = (_PLAUSIBLE_DATA_PARALLEL if name == DATA_PARALLEL else _PLAUSIBLE) * best_s
            if plan.time_s <= limit_s and (budget_bytes is None or plan.memory.total <= budget_bytes):
                found[name] = plan
        return found

    def _better(
        self,
        timing: PlanTrials,
        trials: Mapping[Choices, PlanTrial],
        others: Collection[Choices],
        budget_bytes: int | None,
        misses: int,
    ) -> Sequence[Choices]:
        """Plans to be run next, of `others` and of those that the search finds, knowing what those of `trials` take.

        So many times in a row (`misses`) those that have run for what was expected of them were not faster.
        """
        able = [choices for choices, trial in trials.items() if timing.is_timed(trial)]
        if not able:
            try:
                return [plan.choices for plan in self.search.best(1, budget_bytes) if plan.choices not in trials]
            except MemoryBudgetError:  # the given plans are those of least memory
                return []
        failed = [choices for choices in trials if choices not in able]
        taken_s = statistics.median(trials[choices].taken_s for choices in able)
        gain = worthwhile(taken_s, misses)
        worthy = prospects(self.search, able, budget_bytes, _AT_ONCE, others, failed, least_gain=gain)
        best_s = self._fastest_s(timing, trials.values())
        text = "CFP: of %d timed plans the fastest takes %.1f ms; %d others are expected to be %.2f%% faster"
        logger.info(text, len(able), 1e3 * best_s, len(worthy.plans), 100 * worthy.gain)
        return worthy.plans

    @staticmethod
    def _fastest_s(timing: PlanTrials, trials: Iterable[PlanTrial]) -> float:
        """The time of the fastest plan that was timed."""
        return min((timing.whole_s(each) for each in trials if timing.is_timed(each)), default=math.inf)

    def _time(self, timing: PlanTrials, trials: Sequence[PlanTrial], first: PlanTrial) -> None:
        """Times plans, few at once if the time is limited, and corrects the times of the search by theirs.

        Args:
            timing: Times them.
            trials: The plans.
            first: The plan that is timed beside those of each later call.
        """
        budget = self.search.costs.budget
        at_once = _AT_ONCE if budget.is_limited else max(len(trials), 1)
        for start in range(0, len(trials), at_once):
            if budget.is_over:
                return
            some = trials[start : start + at_once]
            timing.time(some, None if first in some else first)
            for trial in some:
                if timing.is_timed(trial):
                    self.search.observe(trial.solution.choices, timing.whole_s(trial))

    def _trial(self, plan: Solution) -> PlanTrial:
        """The trial of a plan, whose programs are then expected."""
        if plan.choices not in self._trials:
            shorter = self.shorter(plan.choices)
            if shorter is not None:
                self.search.caveats.note(
                    f"plans were timed in programs of up to {shorter.blocks} of the {len(self.blocks.blocks)} blocks: "
                    "the time, memory and collectives of whole programs are extrapolated from them"
                )
                self._trials[plan.choices] = PlanTrial(plan, shorter, ())
            else:
                module = self.search.program(plan.choices) or self.planned(plan.choices)
                self._trials[plan.choices] = PlanTrial(plan, module, self.micro_batch_programs(module))
            self.expect(self._trials[plan.choices].modules)
        return replace(self._trials[plan.choices], solution=plan)

    def baselines(self, limit_s: float = math.inf) -> dict[str, Solution]:
        """The baselines, predicted by their programs if their blocks take no longer; none if they are not wanted."""
        if not self.has_baselines:
            return {}
        found = self._by_hand()
        for plan in found.values():
            if plan.time_s <= limit_s:
                self.search.look_at(plan.choices)
        return {name: self.search.predicted(plan.choices) for name, plan in found.items()}

    def _by_hand(self) -> dict[str, Solution]:
        limit_s, memory_bytes = self.search.limits
        return baselines(
            self.blocks.blocks, self.block_candidates, self.search.problem, self.mesh,
            limit_s=limit_s, memory_bytes=memory_bytes, caveats=self.search.caveats, thorough=False,
        )  # fmt: skip


def _rank_name(number: int) -> str:
    return "best predicted" if number == 1 else f"{ordinal(number)} predicted"
