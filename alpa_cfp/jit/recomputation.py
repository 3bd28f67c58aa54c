"""The form of a program that runs within a memory budget: what its backward pass computes again.

Takes a traced training step and a way to plan one; gives the form with the fastest plan that fits, with that plan. The
forms are a short list: the units of the forward pass (`analysis.recomputation`) computed again without their products,
or whole ones, from few to all of them. Those come first that free most memory for the time they take, of equal layers
the first ones, which are kept longest. Forms are planned in order of what they compute again, until a more frugal one
could not be faster even if all memory were there. Invariants: without a budget, and where the fastest plan fits,
nothing changes; `recomputing` gives a saved plan's program again.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Protocol

from alpa_cfp import quantities
from alpa_cfp.analysis.recomputation import Repeat, Unit, find_units
from alpa_cfp.costs import Rates
from alpa_cfp.errors import NoRunnablePlanError, PlanError, ProfilingError, ReplayError
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.extraction.repeats_in_backward import with_repeats
from alpa_cfp.jit.faster import LEAST_GAIN, is_faster
from alpa_cfp.jit.tracing import TracedFunction
from alpa_cfp.plan.plan_cache import PlannedModule
from alpa_cfp.plan.signature import Recomputed
from alpa_cfp.planner.options import PlanOptions
from alpa_cfp.profiling import TimeBudget
from alpa_cfp.search import MemoryBudgetError, NoPlanError

logger = logging.getLogger(__name__)

# Whether products are kept, and the share of the bytes that could be freed so for which all else is computed again.
_FORMS = ((True, 0.5), (True, 1.0), (False, 1 / 3), (False, 2 / 3), (False, 1.0))

Made = tuple[TracedFunction, PlannedModule]


class Planned(Protocol):
    """Plans a program with some options."""

    def __call__(self, form: TracedFunction, options: PlanOptions) -> PlannedModule: ...


def recomputing(program: TracedFunction, recomputed: Sequence[Recomputed]) -> TracedFunction:
    """Returns a program in which the backward pass computes parts of the forward pass again.

    Args:
        program: The program without.
        recomputed: The parts.

    Raises:
        PlanError: the program has no such parts: it is another one.
    """
    if not recomputed:
        return program
    units = {unit.index: unit for unit in units_of(program)}
    repeats = [
        units[each.unit].repeat(keeps_products=each.keeps_products) if each.unit in units else None
        for each in recomputed
    ]
    known = [repeat for repeat in repeats if repeat is not None]
    if len(known) < len(repeats):
        raise PlanError.other_program()
    return replace(program, module=with_repeats(program.module, known), recomputed=tuple(recomputed))


def units_of(program: TracedFunction) -> tuple[Unit, ...]:
    """The parts of a program's forward pass that may be computed again; none where it has no backward pass."""
    return find_units(AnalysedProgram(program.module).blocks)


def fastest_form(
    program: TracedFunction,
    first: Callable[[], Made],
    planned: Planned,
    options: PlanOptions,
    budget: TimeBudget,
    devices: int = 1,
    device_bytes: int | None = None,
) -> Made:
    """Plans a program, and with recomputation, too, where the memory budget asks for it.

    A device's own memory, where no budget is given, asks for it only if nothing else fits.

    Args:
        program: The program.
        first: Plans it without recomputation; gives the form of its loops that is planned, and the plan.
        planned: Plans a form of it.
        options: How to plan.
        budget: The time after which no other form is planned, if there is a plan.
        devices: The number of devices.
        device_bytes: The memory of a device; None without limit.

    Returns:
        The form with the fastest plan that fits, and its plan.

    Raises:
        MemoryBudgetError: no plan fits. It is the error of the form with the least bytes.
    """
    limit_bytes = options.memory_budget_bytes or device_bytes
    if limit_bytes is None or options.recompute is False:
        return first()
    best, errors = None, list[MemoryBudgetError]()
    try:
        best = first()
    except MemoryBudgetError as error:
        errors.append(error)
    if best is not None and budget.is_over:
        return best
    unlimited = replace(options, memory_budget_bytes=None, refine=0)
    is_asked = options.memory_budget_bytes is not None
    if (
        best is not None
        and options.recompute is None
        and not (is_asked and _is_limited(best, planned, options, unlimited))
    ):
        return best
    missing = 0 if best is not None else min(each.least_bytes for each in errors) - limit_bytes
    for recomputed in _worth_a_try(forms(units_of(program)), missing * devices):
        form = recomputing(program, recomputed)
        logger.info("CFP: planning with %s", _what(recomputed))
        if best is not None:
            if budget.is_over:
                break
            bound = _tried(form, planned, unlimited, errors)
            if bound is None or bound[1].plan.predicted_s >= (1 - LEAST_GAIN) * best[1].plan.predicted_s:
                break
        made = _tried(form, planned, options, errors)
        if made is not None and (best is None or is_faster(made[1].plan, best[1].plan)):
            best = made
    if best is None:
        raise min(errors, key=lambda error: error.least_bytes)
    return best


def forms(units: Sequence[Unit]) -> list[tuple[Recomputed, ...]]:
    """The forms of a program with recomputation, those first that compute least again."""
    rates = Rates()

    def seconds(repeat: Repeat) -> float:
        return repeat.flops / rates.flops_per_s + repeat.written_bytes / rates.bytes_per_s

    found: dict[tuple[Recomputed, ...], float] = {}
    for keeps_products, share in _FORMS:
        repeats = [(unit, unit.repeat(keeps_products=keeps_products)) for unit in units]
        ranked = sorted(
            ((unit, repeat) for unit, repeat in repeats if repeat is not None),
            key=lambda each: (-float(f"{each[1].freed_bytes / seconds(each[1]):.2g}"), each[0].index),
        )
        enough = share * sum(repeat.freed_bytes for _, repeat in ranked)
        before = [0, *accumulate(repeat.freed_bytes for _, repeat in ranked)]
        chosen = [each for each, freed in zip(ranked, before, strict=False) if freed < enough]
        chosen.sort(key=lambda each: each[0].index)
        if chosen:
            form = tuple(Recomputed(u.index, u.blocks, keeps_products, r.freed_bytes) for u, r in chosen)
            found[form] = sum(seconds(repeat) for _, repeat in chosen)
    return sorted(found, key=lambda form: found[form])


def _worth_a_try(found: Sequence[tuple[Recomputed, ...]], missing_bytes: int) -> Sequence[tuple[Recomputed, ...]]:
    """The forms that may free what is missing on all devices together; the one that frees most, if none does.

    What they free is counted without fusion, and so rather too much.
    """
    freed = [sum(each.freed_bytes for each in form) for form in found]
    enough = min(missing_bytes, max(freed, default=0))
    return [form for form, own in zip(found, freed, strict=True) if own >= enough]


def _tried(
    form: TracedFunction, planned: Planned, options: PlanOptions, errors: list[MemoryBudgetError]
) -> Made | None:
    """A form with its plan; None if it has none. The error of a budget is kept."""
    try:
        return form, planned(form, options)
    except MemoryBudgetError as error:
        errors.append(error)
    # Recorded profiles may be those of the program without recomputation alone.
    except (NoPlanError, NoRunnablePlanError, ProfilingError, ReplayError) as error:
        logger.info("CFP: of a form of the program there is no plan: %s", error)
    return None


def _is_limited(best: Made, planned: Planned, options: PlanOptions, unlimited: PlanOptions) -> bool:
    """Whether the memory budget keeps a plan from being as fast as it could be.

    The fastest plan without a budget is only searched for. What it needs is what is predicted, corrected as the plan
    that was compiled says.
    """
    form, made = best
    budget = options.memory_budget_bytes
    assert budget is not None
    fastest = _tried(form, planned, unlimited, [])
    if fastest is None or fastest[1].plan.strategies == made.plan.strategies:
        return False
    ratio = (made.plan.needed_bytes or made.plan.memory.total) / max(made.plan.memory.total, 1)
    return fastest[1].plan.memory.total * ratio > budget


def _what(recomputed: Sequence[Recomputed]) -> str:
    freed = quantities.size(sum(each.freed_bytes for each in recomputed))
    parts = quantities.plural(len(recomputed), "part")
    but = ", but for products," if recomputed[0].keeps_products else ""
    return f"{parts} of the forward pass computed again{but} in the backward pass: {freed} less are kept"
