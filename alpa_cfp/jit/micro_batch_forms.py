"""The form of a training step that runs within a memory budget: in how many micro-batches its samples go through it.

Takes ways to plan the step whole and in parts; gives the form with the fastest plan that fits, with that plan. Each
micro-batch costs time, so the step goes in parts only where the budget asks for it: where no plan fits, or where the
backward pass has to compute something again. Of numbers of parts, from two on, each twice the one before, the first
that fits is taken. Invariants: without a budget, and where the whole step fits as it is, nothing changes; `in_parts`
gives the function of a saved plan again.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax

from alpa_cfp.errors import MicroBatchError, NoRunnablePlanError, ProfilingError, ReplayError
from alpa_cfp.jit.faster import is_faster
from alpa_cfp.jit.micro_batches import in_micro_batches, positions_of, samples_of
from alpa_cfp.jit.recomputation import Made
from alpa_cfp.jit.tracing import TracedFunction, shape_and_dtype, trace
from alpa_cfp.plan.signature import MicroBatches
from alpa_cfp.profiling import TimeBudget
from alpa_cfp.search import MemoryBudgetError, NoPlanError

logger = logging.getLogger(__name__)

# JAX computes dims of one element differently, so that a part of one sample may be another program.
_LEAST_SAMPLES = 2
# Recorded profiles may be those of the whole step alone.
_NO_PLAN = (NoPlanError, NoRunnablePlanError, ProfilingError, ReplayError)


def in_parts(fn: Callable[..., Any], parts: MicroBatches | None) -> Callable[..., Any]:
    """Returns a function as a plan runs it: in micro-batches, if it does."""
    return fn if parts is None else in_micro_batches(fn, parts.count, parts.batch_argnums)


def trace_in_parts(parts: MicroBatches | None, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> TracedFunction:
    """As `tracing.trace`, of a function as a plan runs it; see there."""
    return replace(trace(in_parts(fn, parts), *args, **kwargs), micro_batches=parts)


def possible_parts(args: Sequence[Any], batch_argnums: int | Sequence[int]) -> Iterator[MicroBatches]:
    """Gives the numbers of micro-batches that a step may have, ascending.

    Args:
        args: Its arguments; shapes are enough.
        batch_argnums: The positions of those with samples along their first dims.

    Raises:
        MicroBatchError: these have no arrays, or different numbers of them, or there is no such argument.
    """
    positions = positions_of(batch_argnums, len(args))
    if not positions:
        return
    leaves = [leaf for position in positions for leaf in jax.tree.leaves(args[position])]
    samples = samples_of([shape_and_dtype(leaf)[0] for leaf in leaves])
    count = 2
    while samples % count == 0 and samples >= _LEAST_SAMPLES * count:
        yield MicroBatches(count, positions)
        count *= 2


def fastest_parts(
    whole: Callable[[], Made],
    of_parts: Callable[[MicroBatches], Made],
    possible: Sequence[MicroBatches],
    budget: TimeBudget,
) -> Made:
    """Plans a step, and in micro-batches, too, where the memory budget asks for it.

    Args:
        whole: Plans it with all samples at once.
        of_parts: Plans it in micro-batches.
        possible: The numbers of micro-batches that it may have, ascending; none without a memory budget.
        budget: The time after which no other form is planned, if there is a plan.

    Returns:
        The form with the fastest plan that fits, and its plan.

    Raises:
        MemoryBudgetError: no plan fits. It is the error of the form with the least bytes.
    """
    best, errors = None, list[MemoryBudgetError]()
    try:
        best = whole()
    except MemoryBudgetError as error:
        if not possible:
            raise
        errors.append(error)
    if best is not None and not best[0].recomputed:
        return best
    failure: Exception | None = None
    for parts in possible:
        if best is not None and budget.is_over:
            break
        logger.info("CFP: planning with %d micro-batches", parts.count)
        try:
            made = of_parts(parts)
        except MemoryBudgetError as error:
            errors.append(error)
            continue
        except (MicroBatchError, *_NO_PLAN) as error:
            logger.warning("the samples do not go through the step in micro-batches: %s", error)
            failure = error
            break
        if best is None or is_faster(made[1].plan, best[1].plan):
            best = made
        break
    if best is None:
        raise min(errors, key=lambda error: error.least_bytes) from failure
    return best
