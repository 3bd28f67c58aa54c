"""The chosen plan as its whole program, where plans are compared by shorter ones.

Takes the refinement of a program's plans; gives the best plan with the seconds, the memory and the timeline of its
whole compiled program. Skeletons tell a plan's memory closely, and the compiler of the whole program decides: if that
needs more than the budget, plans of less memory are looked for. Invariant: a plan that is returned fits by its whole
program.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from alpa_cfp.database import Profile, StepTimeline
from alpa_cfp.errors import NoRunnablePlanError
from alpa_cfp.search import MemoryBudgetError
from alpa_cfp.select.profiles import failure_of
from alpa_cfp.select.refinement import MeasuredPlan, Refinement
from alpa_cfp.spmd.module.hlo_module import HloModule

logger = logging.getLogger(__name__)

_ATTEMPTS = 4
# The share of the budget that the next plan may use when one needs more than its shorter programs say.
_RESERVE = 0.995
TimelineOf = Callable[[HloModule], StepTimeline | None]


def best_whole(refinement: Refinement, budget_bytes: int | None, timeline_of: TimelineOf) -> MeasuredPlan:
    """The best plan, of which the whole program was compiled.

    Args:
        refinement: Finds plans.
        budget_bytes: What a device may hold; None without limit.
        timeline_of: Gives the timeline of a program that was compiled; None if it has none.

    Raises:
        NoRunnablePlanError: no plan's whole program can be compiled.
        MemoryBudgetError: no plan fits; see `Refinement.best`.
    """
    limit, needed = budget_bytes, 0
    for _ in range(_ATTEMPTS):
        try:
            best = refinement.best(limit)
        except MemoryBudgetError as error:
            if limit == budget_bytes or budget_bytes is None:
                raise
            # By what whole programs need beyond what shorter ones say.
            raise error.scaled(budget_bytes) from error
        found = _first_whole(refinement, best, limit, timeline_of)
        needed = found.needed_bytes or 0
        if budget_bytes is None or limit is None or needed <= budget_bytes:
            return found
        logger.info("CFP: the whole program needs %.3f of the budget; searching again", needed / budget_bytes)
        limit = int(limit * _RESERVE * budget_bytes / needed)
    assert budget_bytes is not None
    raise MemoryBudgetError(needed, budget_bytes, (0, 0, needed), ("the whole program",) * 3)


def _first_whole(
    refinement: Refinement, best: MeasuredPlan, limit: int | None, timeline_of: TimelineOf
) -> MeasuredPlan:
    """The best plan whose whole program can be compiled; one that cannot costs that plan only."""
    others = [
        each
        for each in refinement.tried.values()
        if each.solution.choices != best.solution.choices
        and each.selection_s is not None
        and (limit is None or (each.needed_bytes or 0) <= limit)
    ]
    failures = []
    for plan in [best, *sorted(others, key=lambda each: each.selection_s or 0.0)]:
        program = refinement.planned(plan.solution.choices)
        (profile,) = refinement.profiles([program])
        if profile is not None and profile.samples_s:
            return _with(plan, profile, timeline_of(program))
        failures.append(failure_of(profile) or "its whole program was not compiled")
        reason = failures[-1].partition("\n")[0]
        refinement.search.caveats.warn(
            f"the whole program of a faster plan cannot be compiled for the target ({reason}): the next best is taken"
        )
    raise NoRunnablePlanError(failures)


def _with(plan: MeasuredPlan, profile: Profile, timeline: StepTimeline | None) -> MeasuredPlan:
    """A plan with the measurements of its whole program."""
    step_s, collectives = profile.lower_half_mean_s, sum(each.count for each in profile.collectives)
    return replace(
        plan,
        measured_s=step_s,
        selection_s=step_s,
        needed_bytes=profile.memory_bytes,
        collectives=collectives,
        timeline=timeline,
    )
