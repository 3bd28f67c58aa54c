"""The form of a program that runs: with its loops unrolled, or as they are written.

Unrolled, the planner sees each iteration, and can split what is in it. Where splitting gains little, the loops may well
be faster: they are small programs, of which little is waited for. Takes a traced function and a way to plan one; gives
the form whose step is the faster one, as measured or modelled, with its plan. Invariant: a program that says itself
what lies where keeps the form in which that is planned.
"""

import dataclasses
import logging
from collections.abc import Callable

from alpa_cfp.errors import NoRunnablePlanError, ProfilingError, ReplayError
from alpa_cfp.jit.faster import is_faster
from alpa_cfp.jit.tracing import TracedFunction
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_cache import PlannedModule
from alpa_cfp.profiling import TimeBudget
from alpa_cfp.search import MemoryBudgetError, NoPlanError
from alpa_cfp.strategies.block_strategy import StateSharding

logger = logging.getLogger(__name__)

_AS_WRITTEN = (
    "no loop is unrolled: the step is faster with the loops as they are written, inside which nothing is planned"
)
# How many times as long as the best plan the one that splits nothing may be predicted to take, unrolled, where the
# loops as they are written are tried: a loop of small steps may be as many times as fast as its unrolled form.
_WORTH_A_TRY = 3.0


def faster_form(
    program: TracedFunction,
    as_written: Callable[[], TracedFunction],
    planned: Callable[[TracedFunction], PlannedModule],
    budget: TimeBudget,
) -> tuple[TracedFunction, PlannedModule]:
    """Plans a program, and with its loops as they are written, too, where that may be faster.

    Args:
        program: The program with its loops unrolled.
        as_written: Traces it with its loops.
        planned: Plans a program.
        budget: The time after which nothing more is planned.

    Returns:
        The faster form, and its plan.
    """
    made = planned(program)
    if budget.is_over or not program.unrolled or program.names_mesh or not _gains_little(made.plan):
        return program, made
    logger.info("CFP: to split the program gains little; it is planned with its loops as they are written, too")
    try:
        other = as_written()
        again = planned(other)
    # Recorded profiles may be those of the program with its loops unrolled alone.
    except (MemoryBudgetError, NoPlanError, NoRunnablePlanError, ProfilingError, ReplayError) as error:
        logger.info("CFP: with the loops as they are written there is no plan: %s", error)
        return program, made
    if not is_faster(again.plan, made.plan):
        return program, made
    caveats = Caveats()
    caveats.note(_AS_WRITTEN)
    return dataclasses.replace(other, caveats=(*other.caveats, *caveats.all)), again


def _gains_little(plan: Plan) -> bool:
    """Whether a plan is hardly faster than one that splits nothing would be, as far as whole plans were timed."""
    if plan.measured_s is None or plan.account is None:
        return False
    whole_s = plan.account.overhead_s
    for block in plan.account.blocks:
        unsplit = (
            each.time_s
            for each in plan.account.kinds[block.kind].alternatives
            if each.kept == StateSharding.REPLICATED and not any(each.roles)
        )
        own_s = next(unsplit, None)
        if own_s is None:
            return False
        whole_s += own_s
    return whole_s <= _WORTH_A_TRY * plan.measured_s
