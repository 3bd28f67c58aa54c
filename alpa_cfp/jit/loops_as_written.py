"""The form of a program that runs: with its loops unrolled, or as they are written.

Unrolled, the planner sees each iteration, and can split what is in it. Where the best plan splits nothing at all, that
is of no use, and the loops may well be faster: their code is small. Takes a traced function and a way to plan one;
gives the form that was measured to be the faster one, with its plan. Invariant: a program that says itself what lies
where keeps the form in which that is planned.
"""

import dataclasses
import logging
from collections.abc import Callable

from alpa_cfp.errors import NoRunnablePlanError, ReplayError
from alpa_cfp.jit.tracing import TracedFunction
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_cache import PlannedModule
from alpa_cfp.search import MemoryBudgetError, NoPlanError

logger = logging.getLogger(__name__)

_AS_WRITTEN = (
    "the best plan of the program with its loops unrolled splits nothing, and with the loops as they are written the "
    "step is faster: so it runs"
)


def faster_form(
    program: TracedFunction,
    as_written: Callable[[], TracedFunction],
    planned: Callable[[TracedFunction], PlannedModule],
) -> tuple[TracedFunction, PlannedModule]:
    """Plans a program, and with its loops as they are written, too, where that may be faster.

    Args:
        program: The program with its loops unrolled.
        as_written: Traces it with its loops.
        planned: Plans a program.

    Returns:
        The faster form, and its plan.
    """
    made = planned(program)
    if not program.unrolled or program.names_mesh or _splits(made.plan) or made.plan.measured_s is None:
        return program, made
    other = as_written()
    logger.info("CFP: the best plan splits nothing; the loops as they are written are tried")
    try:
        again = planned(other)
    # Recorded profiles may be those of the program with its loops unrolled alone.
    except (MemoryBudgetError, NoPlanError, NoRunnablePlanError, ReplayError) as error:
        logger.info("CFP: with the loops as they are written there is no plan: %s", error)
        return program, made
    if not _is_faster(again.plan, made.plan):
        return program, made
    caveats = Caveats()
    caveats.note(_AS_WRITTEN)
    return dataclasses.replace(other, caveats=(*other.caveats, *caveats.all)), again


def _splits(plan: Plan) -> bool:
    """Whether a plan splits anything."""
    return any(factor is not None for strategy in plan.strategies for factor in strategy.factors)


def _is_faster(plan: Plan, than: Plan) -> bool:
    """Whether the step of a plan was measured to be faster than that of another one."""
    return plan.measured_s is not None and than.measured_s is not None and plan.measured_s < than.measured_s
