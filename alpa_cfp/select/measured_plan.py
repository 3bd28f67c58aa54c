"""A plan with what is known of its whole program: the step time, the memory, the collectives.

Takes what a trial of a plan has measured; gives that as one record, which plans are chosen by, reported and kept.
"""

from dataclasses import dataclass

from alpa_cfp.database import StepTimeline
from alpa_cfp.search import MemoryBudgetError, Solution
from alpa_cfp.select.plan_race import PlanRace
from alpa_cfp.select.plan_trials import PlanTrial
from alpa_cfp.select.profiles import failure_of


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """A plan with the measurements of its whole program.

    Attributes:
        solution: The choice for each block, with the prediction.
        measured_s: The step time; of the fastest plan from samples that had no part in the choice, and of others by
            how much longer they took than that one in the race; None if it was not run.
        needed_bytes: The memory of the compiled program on one device; None if it was not compiled.
        collectives: The number of collectives of the compiled program; None if it is not known.
        failure: Why it could not be run, if it was tried.
        name: Its name among the plans that were tried: "best predicted", "2nd predicted", "data parallel".
        selection_s: The step time from the samples that decide the choice; None if it was not run.
        timeline: The modelled timeline of its whole program; None if it has none.
    """

    solution: Solution
    measured_s: float | None = None
    needed_bytes: int | None = None
    collectives: int | None = 0
    failure: str = ""
    name: str = ""
    selection_s: float | None = None
    timeline: StepTimeline | None = None

    @property
    def memory_ratio(self) -> float:
        """The memory of the compiled program by the predicted one."""
        return (self.needed_bytes or 0) / max(self.solution.memory.total, 1)


def measured_plan(race: PlanRace, number: int, trial: PlanTrial, name: str) -> MeasuredPlan:
    """The plan of a trial with its measurements.

    Args:
        race: The race that it may have run in.
        number: Its number there.
        trial: The trial.
        name: Its name among the plans that were tried.
    """
    profile = trial.whole
    if profile is None:
        return MeasuredPlan(trial.solution, name=name)
    if profile.status == "failed":
        return MeasuredPlan(trial.solution, failure=failure_of(profile), name=name)
    program = trial.own_modules[0].partitioned
    assert program is not None
    unread = program.partitioner == "xla" and not profile.collectives_compiled
    collectives = None if unread else sum(each.count for each in profile.collectives)
    return MeasuredPlan(
        trial.solution,
        race.reported_s.get(number),
        profile.memory_bytes,
        collectives,
        name=name,
        selection_s=race.chosen_by_s.get(number),
    )


def budget_error(least: MeasuredPlan, budget_bytes: int) -> MemoryBudgetError:
    """Returns the error with the memory of the compiled program; its parts are the predicted ones, scaled to it."""
    memory, needed = least.solution.memory, least.needed_bytes or 0
    state, saved = (int(part * needed / max(memory.total, 1)) for part in (memory.state, memory.saved))
    parts = (state, saved, needed - state - saved)
    return MemoryBudgetError(needed, budget_bytes, parts, ("the whole program",) * 3, least.name or "best predicted")
