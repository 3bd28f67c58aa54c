"""The form of a program that fits into a memory budget: with parts of its forward pass computed again, where that pays.

Takes a traced function, ways to plan its forms, and what it would take without a budget; gives the form whose plan is
the fastest that fits. So shardings and recomputation are chosen together: a plan that splits less, communicates less
and computes some layers again may be faster than one that splits until everything fits (Mist, arXiv 2503.19050).
Invariant: without a budget, and where the fastest plan fits into it, nothing is computed again.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import replace

from alpa_cfp.analysis.blocks import Blocks, find_blocks
from alpa_cfp.analysis.forward_parts import forward_parts
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.apply.recompute import recompute
from alpa_cfp.errors import NoRunnablePlanError, ProfilingError, ReplayError
from alpa_cfp.jit.tracing import TracedFunction
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_cache import PlannedModule
from alpa_cfp.profiling import TimeBudget
from alpa_cfp.search import MemoryBudgetError, NoPlanError
from alpa_cfp.strategies.recomputation import Recomputation

logger = logging.getLogger(__name__)

# By what share a step has to be faster without a memory budget for other forms to be tried: less is noise.
_LEAST_GAIN = 0.02
Form = tuple[TracedFunction, PlannedModule]


def recomputed(program: TracedFunction, recomputation: Recomputation, blocks: Blocks | None = None) -> TracedFunction:
    """Returns a traced function whose module computes parts of the forward pass again.

    Args:
        program: The function.
        recomputation: What is computed again.
        blocks: The blocks of its module, if they are known.
    """
    blocks = blocks or find_blocks(read_graph(program.module.bytecode))
    module = recompute(program.module, blocks, recomputation)
    caveats, count = Caveats(), len(forward_parts(blocks))
    but = ", products excepted" if recomputation.keeps_products else ""
    caveats.note(
        f"{len(recomputation.parts)} of {count} parts of the forward pass are computed again in the backward pass"
        f"{but}, instead of being kept: so the plan fits into the memory budget"
    )
    return replace(program, module=module, recomputation=recomputation, caveats=(*program.caveats, *caveats.all))


def fastest_that_fits(
    program: TracedFunction,
    plain: Callable[[], Form],
    planned: Callable[[TracedFunction], PlannedModule],
    free_s: Callable[[], float] | None,
    budget: TimeBudget,
) -> Form:
    """Plans a program within a memory budget, and with recomputation where that may be faster.

    Args:
        program: The program.
        plain: Plans it without recomputation.
        planned: Plans another form of it.
        free_s: Gives what its fastest plan is predicted to take without a memory budget; None: any plan that fits
            without recomputation is taken.
        budget: The time after which no other form is planned, if there is a plan.

    Raises:
        MemoryBudgetError: no form fits; it names what the smallest plan of all forms needs. If its state alone does
            not fit, no other form is planned.
    """
    best, least, bound_s = None, None, 0.0
    try:
        best = plain()
    except MemoryBudgetError as error:
        least = error
        if error.state_bytes > error.budget_bytes:  # of which nothing can be computed again
            raise
    else:
        if free_s is None or best[0].keeps_loops or budget.is_over:
            return best
        bound_s = free_s()
        if not _is_worth_it(best[1].plan, bound_s):
            return best
    blocks = find_blocks(read_graph(program.module.bytecode))
    for recomputation in _choices(len(forward_parts(blocks))):
        if best is not None and (budget.is_over or not _is_worth_it(best[1].plan, bound_s)):
            break
        form = recomputed(program, recomputation, blocks)
        if form.module.bytecode == program.module.bytecode:
            continue
        logger.info("CFP: planning with %s", form.caveats[-1].text)
        try:
            made = planned(form)
        except MemoryBudgetError as error:
            least = error if least is None or error.least_bytes < least.least_bytes else least
            continue
        except (NoPlanError, NoRunnablePlanError, ProfilingError, ReplayError) as error:
            logger.info("CFP: there is no such plan: %s", error)
            continue
        if best is None or _seconds(made.plan, best[1].plan) < _seconds(best[1].plan, made.plan):
            best = form, made
    if best is None:
        assert least is not None
        raise least
    return best


def _choices(parts: int) -> list[Recomputation]:
    """What may be computed again, in the order of what it costs: all parts but for their products, half of them, all.

    Never the last part, whose values the backward pass needs first.
    """
    every = range(parts - 1)
    half = range(math.ceil(len(every) / 2))
    found = [Recomputation(tuple(every), keeps_products=True)]
    found += [Recomputation(tuple(some), keeps_products=False) for some in dict.fromkeys((half, every))]
    return [each for each in found if each.parts]


def _is_worth_it(plan: Plan, free_s: float) -> bool:
    """Whether a plan is predicted to take longer than the fastest one would without a memory budget."""
    return free_s < (1 - _LEAST_GAIN) * plan.predicted_s


def _seconds(plan: Plan, other: Plan) -> float:
    """The step time of a plan by which it is compared with another one: as measured, if both were."""
    both = plan.measured_s is not None and other.measured_s is not None
    return plan.measured_s if both and plan.measured_s is not None else plan.predicted_s
