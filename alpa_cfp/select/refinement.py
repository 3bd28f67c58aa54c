"""Compile the best plans whole, and take the fastest one that really fits (CFP, section 7).

Takes a program's choices and a budget; gives one plan. Times of blocks do not add up to the step exactly, nor does
memory: so the best predicted plans and the plain ones (`baselines`) run whole, side by side, and what a compiled
program needs is held against the budget. Where all need more than predicted, the search is repeated for so much less.
Invariants: a plan that was compiled and is given back fits; the same profiles give the same plan.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.candidates.block_candidates import BlockCandidates
from alpa_cfp.costs import read_local, work_of
from alpa_cfp.errors import NoRunnablePlanError
from alpa_cfp.quantities import ordinal
from alpa_cfp.search import MemoryBudgetError, Solution
from alpa_cfp.select.baselines import baselines
from alpa_cfp.select.plan_search import PlanSearch, Profiles, failure_of
from alpa_cfp.select.plan_trials import HELD_OUT, PlanTrial, PlanTrials
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh

logger = logging.getLogger(__name__)

# A plain plan that is predicted to be slower than the best by more than this factor is not tried. What is predicted to
# be the best of many plans is one whose prediction is too good: in races of an MLP's and a MoE's stages, measured by
# predicted times differed by up to twice.
_PLAUSIBLE = 1.5
_ATTEMPTS = 4
# After the last heat, two programs that differ by less cannot be told apart; and less memory than this is not worth a
# communication.
_ALIKE = 1.01
_ALIKE_MEMORY = 1.05
# What is left free of the budget when a plan has been found to need more than predicted.
_RESERVE = 0.99
_FALLBACK = (
    "plans need more memory than predicted, by a factor that differs from plan to plan: a plan of little memory is "
    "taken, where a faster one may fit"
)


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """A plan and what is known of it as a whole.

    Attributes:
        solution: The choice for each unit, with the prediction.
        measured_s: What a step takes, by samples that had no part in the choice; None where it was not run.
        raced_s: The same by those that decide; None where it was not run.
        needed_bytes: What a device needs by the compiled program; None where it was not compiled.
        collectives: How many the compiled program has; None where that is not known.
        failure: Why it could not be run, if it was tried.
        name: What it is among the plans that were tried: "best predicted", "2nd predicted", "data parallel".
    """

    solution: Solution
    measured_s: float | None = None
    needed_bytes: int | None = None
    collectives: int | None = 0
    failure: str = ""
    name: str = ""
    raced_s: float | None = None


@dataclass(frozen=True)
class Refinement:
    """How plans are refined.

    Attributes:
        blocks: The blocks of the program.
        units: Its units.
        mesh: The logical mesh.
        choosing: Its candidates' costs.
        profiles: Where profiles come from.
        planned: Gives the whole program with the plan of some choices, partitioned.
        further: Gives what such a program runs for each micro-batch but the first, partitioned; nothing where there is
            one, or where that is not known: then it is estimated what of the whole is done once.
        count: How many of the best predicted plans are run.
        samples: How often candidates are run.
        tried: The plans that have been run whole, by their choices, with what is known of them.
    """

    blocks: Blocks
    units: Sequence[BlockCandidates]
    mesh: LogicalMesh
    choosing: PlanSearch
    profiles: Profiles
    planned: Callable[[Sequence[int]], HloModule]
    further: Callable[[HloModule], Sequence[HloModule]]
    count: int
    samples: int
    tried: dict[tuple[int, ...], MeasuredPlan] = field(default_factory=dict, init=False, compare=False, repr=False)

    def best(self, budget_bytes: int | None) -> MeasuredPlan:
        """The fastest plan within the budget.

        Raises:
            NoRunnablePlanError: none of the plans could be compiled and run whole.
            MemoryBudgetError: no plan fits into the budget; it says what the least one really needs.
        """
        if budget_bytes is None:
            return self._fastest(self._run(self.choosing.best(self.count, None)))
        # How many bytes a plan needs for each one that is predicted.
        ratio, fallback = 1.0, None
        for _ in range(_ATTEMPTS):
            predicted = int(budget_bytes / ratio)
            try:
                found, is_least = self.choosing.best(self.count, predicted), False
            except MemoryBudgetError as error:
                found, is_least = self.choosing.best(1, error.least_bytes), True
            tried = self._run(found, predicted)
            fitting = [
                each
                for each in tried
                if not each.failure and (each.needed_bytes is None or each.needed_bytes <= budget_bytes)
            ]
            worst = max((each for each in tried if each.needed_bytes), key=_ratio, default=None)
            if worst is None and fitting:
                self.choosing.caveats.warn("no plan could be held against the memory budget by its compiled program")
            if worst is None or (fitting and not is_least):
                return self._fastest(fitting or tried)
            if is_least and not fitting:
                if fallback is not None:
                    self.choosing.caveats.warn(_FALLBACK)
                    return fallback
                compiled = (each for each in tried if each.needed_bytes)
                raise _nothing_fits(min(compiled, key=lambda each: each.needed_bytes or 0), budget_bytes)
            if fitting:
                fallback = self._fastest(fitting)
            ratio = _ratio(worst) / _RESERVE
            logger.info("CFP: plans need %.2f times the memory that was predicted; searching again", _ratio(worst))
        if fallback is not None:
            self.choosing.caveats.warn(_FALLBACK)
            return fallback
        self.choosing.caveats.warn(
            f"in {_ATTEMPTS} attempts every plan needed more memory than predicted: the one of least memory is taken"
        )
        least = self._fastest(self._run(self._least(budget_bytes), 0))
        if least.needed_bytes is not None and least.needed_bytes > budget_bytes:
            raise _nothing_fits(least, budget_bytes)
        return least

    def _least(self, budget_bytes: int) -> Sequence[Solution]:
        """The plan that is predicted to need least."""
        try:
            return self.choosing.best(1, min(budget_bytes, 1))
        except MemoryBudgetError as error:
            return self.choosing.best(1, error.least_bytes)

    def _run(self, found: Sequence[Solution], budget_bytes: int | None = None) -> list[MeasuredPlan]:
        """The plans of `found` and the plain ones, run whole; in the order of their predictions."""
        plans = {solution.choices: solution for solution in found}
        names = {choices: _place(number) for number, choices in enumerate(plans, start=1)}
        limit = _PLAUSIBLE * min(solution.time_s for solution in found)
        for name, plan in self._plain().items():
            if plan.time_s <= limit and (budget_bytes is None or plan.memory.total <= budget_bytes):
                logger.info("CFP: %s is tried, too", name)
                plans.setdefault(plan.choices, plan)
                names[plan.choices] = f"{names[plan.choices]} ({name})" if plan.choices in names else name
        racers = [self._racer(plan) for plan in plans.values()]
        race = PlanTrials(self.choosing, self.profiles, self.samples)
        race.run(racers, budget_bytes)
        tried = [_refined(race, racer, name) for racer, name in zip(racers, names.values(), strict=True)]
        self.tried.update({each.solution.choices: each for each in tried})
        return tried

    def _racer(self, plan: Solution) -> PlanTrial:
        module = self.planned(plan.choices)
        return PlanTrial(self._with_whole(plan, module), module, self.further(module))

    def _with_whole(self, plan: Solution, module: HloModule) -> Solution:
        program = module.partitioned
        assert program is not None
        if program.partitioner == "xla":
            left = f"whole programs are left to XLA's partitioner, because of {program.fallback_reason}"
            self.choosing.caveats.warn(
                f"{left}: what they communicate is not in their predictions"
                if program.prediction is None
                else f"{left}: they are predicted as if each device computed whole what Shardy does not split"
            )
        return self.choosing.with_whole(plan, work_of(program.counted, read_local(program.counted)))

    def _plain(self) -> dict[str, Solution]:
        """The plain plans that may be among the best, of measured candidates."""
        while True:
            limit_s, memory_bytes = self.choosing.limits
            plain = baselines(
                self.blocks.blocks, self.units, self.choosing.problem, self.mesh,
                limit_s=limit_s, memory_bytes=memory_bytes, caveats=self.choosing.caveats,
            )  # fmt: skip
            best = min(self.choosing.best(1, None)[0].time_s, *(plan.time_s for plan in plain.values()))
            plausible = {name: plan for name, plan in plain.items() if plan.time_s <= _PLAUSIBLE * best}
            if not self.choosing.measure([plan.choices for plan in plausible.values()]):
                return plausible

    def _fastest(self, tried: Sequence[MeasuredPlan]) -> MeasuredPlan:
        """The fastest one, or of those that are as fast the one that needs least memory, and then least communication;
        the best predicted where none was run."""
        seconds = [each.raced_s for each in tried if each.raced_s is not None]
        if not seconds:
            if all(each.failure for each in tried):
                raise NoRunnablePlanError([each.failure for each in tried])
            self.choosing.caveats.warn(
                "no plan was timed whole, for none of them has a profile: the best predicted one is taken"
            )
            return next(each for each in tried if not each.failure)
        limit = _ALIKE * min(seconds)
        alike = [each for each in tried if each.raced_s is not None and each.raced_s <= limit]
        enough = _ALIKE_MEMORY * min(each.needed_bytes or 0 for each in alike)
        frugal = [each for each in alike if (each.needed_bytes or 0) <= enough]
        return min(frugal, key=lambda each: (math.inf if each.collectives is None else each.collectives, each.raced_s))


def _refined(race: PlanTrials, racer: PlanTrial, name: str) -> MeasuredPlan:
    """What a race has shown of a plan."""
    profile = racer.whole
    if profile is None:
        return MeasuredPlan(racer.solution, name=name)
    if profile.status == "failed":
        return MeasuredPlan(racer.solution, failure=failure_of(profile), name=name)
    program = racer.module.partitioned
    assert program is not None
    unread = program.partitioner == "xla" and not profile.collectives_compiled
    collectives = None if unread else sum(each.count for each in profile.collectives)
    return MeasuredPlan(
        racer.solution,
        race.step_s(racer, HELD_OUT),
        profile.memory_bytes,
        collectives,
        name=name,
        raced_s=race.step_s(racer),
    )


def _place(number: int) -> str:
    return "best predicted" if number == 1 else f"{ordinal(number)} predicted"


def _ratio(each: MeasuredPlan) -> float:
    return (each.needed_bytes or 0) / max(each.solution.memory.total, 1)


def _nothing_fits(least: MeasuredPlan, budget_bytes: int) -> MemoryBudgetError:
    """The error for what the compiled program needs; its parts are predictions, scaled to it."""
    memory, needed = least.solution.memory, least.needed_bytes or 0
    state, saved = (int(part * needed / max(memory.total, 1)) for part in (memory.state, memory.saved))
    parts = (state, saved, needed - state - saved)
    return MemoryBudgetError(needed, budget_bytes, parts, ("the whole program",) * 3)
