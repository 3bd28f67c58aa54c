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
from alpa_cfp.select.measured_plan import MeasuredPlan, budget_error
from alpa_cfp.select.profiles import failure_of
from alpa_cfp.select.refinement import Refinement
from alpa_cfp.spmd.module.hlo_module import HloModule

logger = logging.getLogger(__name__)

_ATTEMPTS = 4
# The most whole programs that are compiled to choose one of them: each takes as long as many shorter ones.
_MOST_WHOLE = 3
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
        found = _best_of_whole(refinement, best, (limit, budget_bytes), timeline_of)
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
    """
    known = {each.solution.choices for each in whole}
    tried = [each for each in refinement.tried.values() if each.needed_bytes and not each.failure]
    least = min(tried, key=lambda each: each.needed_bytes or 0, default=None)
    if least is not None and least.solution.choices not in known:
        compiled, _ = _compiled(refinement, least, timeline_of)
        whole = [*whole, *([] if compiled is None else [compiled])]
    return min(whole, key=lambda each: each.needed_bytes or 0, default=None)


def _best_of_whole(
    refinement: Refinement, best: MeasuredPlan, limits: tuple[int | None, int | None], timeline_of: TimelineOf
) -> MeasuredPlan:
    """The fastest plan that fits by its whole program, as far as programs are compiled.

    Shorter programs do not tell all that overlaps in the whole one: the next best plan is compiled, too, as long as its
    shorter ones are faster than the whole programs so far. One that cannot be compiled costs that plan only.

    Args:
        refinement: Has tried plans.
        best: The best of these.
        limits: What shorter programs may need, and what the whole one may; None without limit.
        timeline_of: See `best_whole`.

    Raises:
        NoRunnablePlanError: none of their whole programs can be compiled.
    """
    limit, budget_bytes = limits
    others = [
        each
        for each in refinement.tried.values()
        if each.solution.choices != best.solution.choices
        and each.selection_s is not None
        and (limit is None or (each.needed_bytes or 0) <= limit)
    ]

    def rank(whole: MeasuredPlan) -> tuple[bool, float]:
        fits = budget_bytes is None or (whole.needed_bytes or 0) <= budget_bytes
        return not fits, whole.selection_s or 0.0

    found, failures = list[MeasuredPlan](), list[str]()
    for plan in [best, *sorted(others, key=lambda each: each.selection_s or 0.0)]:
        if found and (len(found) == _MOST_WHOLE or min(map(rank, found)) <= (False, plan.selection_s or 0.0)):
            break
        whole, failure = _compiled(refinement, plan, timeline_of)
        if whole is not None:
            found.append(whole)
            continue
        failures.append(failure)
        reason = failure.partition("\n")[0]
        refinement.search.caveats.warn(
            f"the whole program of a faster plan cannot be compiled for the target ({reason}): the next best is taken"
        )
    if not found:
        raise NoRunnablePlanError(failures)
    return min(found, key=rank)


def _compiled(refinement: Refinement, plan: MeasuredPlan, timeline_of: TimelineOf) -> tuple[MeasuredPlan | None, str]:
    """A plan with what its whole program says; None with the reason if that cannot be compiled."""
    program = refinement.rounds.planned(plan.solution.choices)
    (profile,) = refinement.rounds.profiles([program])
    if profile is not None and profile.samples_s:
        return _with(plan, profile, timeline_of(program)), ""
    return None, failure_of(profile) or "its whole program was not compiled"


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
