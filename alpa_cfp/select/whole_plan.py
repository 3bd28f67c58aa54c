"""The chosen plan as its whole program, where plans are compared by shorter ones.

Takes the refinement of a program's plans; gives the best plan with the seconds, the memory and the timeline of its
whole compiled program. Skeletons tell a plan's memory closely, and the compiler of the whole program decides: if that
needs more than the budget, plans of less memory are looked for. Invariant: a plan that is returned fits by its whole
program.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from alpa_cfp.database import Profile, StepTimeline
from alpa_cfp.errors import NoRunnablePlanError
from alpa_cfp.search import MemoryBudgetError
from alpa_cfp.select.profiles import failure_of
from alpa_cfp.select.refinement import MeasuredPlan, Refinement, budget_error
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
        MemoryBudgetError: no plan fits; it names what the compiler says of the smallest plan's whole program.
    """
    limit, whole, failed = budget_bytes, list[MeasuredPlan](), None
    for _ in range(_ATTEMPTS):
        try:
            best = refinement.best(limit)
        except MemoryBudgetError as error:
            if budget_bytes is None:
                raise
            failed = error
            break
        found = _first_whole(refinement, best, limit, timeline_of)
        if budget_bytes is None or limit is None or (found.needed_bytes or 0) <= budget_bytes:
            return found
        whole.append(found)
        needed = found.needed_bytes or 0
        logger.info("CFP: the whole program needs %.3f of the budget; searching again", needed / budget_bytes)
        limit = int(limit * _RESERVE * budget_bytes / needed)
    assert budget_bytes is not None
    smallest = _smallest(refinement, whole, timeline_of)
    if smallest is None:
        raise failed or NoRunnablePlanError(["no plan's memory is known"])
    if (smallest.needed_bytes or 0) <= budget_bytes:
        return smallest
    raise budget_error(smallest, budget_bytes)


def _smallest(refinement: Refinement, whole: Sequence[MeasuredPlan], timeline_of: TimelineOf) -> MeasuredPlan | None:
    """The plan that needs least by its whole program: of those that were compiled, and the smallest by shorter ones.

    None if nothing was compiled.

    Raises:
        NoRunnablePlanError: its whole program cannot be compiled, nor that of another.
    """
    known = {each.solution.choices for each in whole}
    tried = [each for each in refinement.tried.values() if each.needed_bytes and not each.failure]
    least = min(tried, key=lambda each: each.needed_bytes or 0, default=None)
    if least is not None and least.solution.choices not in known:
        whole = [*whole, _first_whole(refinement, least, None, timeline_of)]
    return min(whole, key=lambda each: each.needed_bytes or 0, default=None)


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
