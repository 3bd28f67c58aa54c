"""With a memory budget the fastest form that fits is taken: as it is written, or with parts computed again."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.forward_parts import forward_parts
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.errors import NoRunnablePlanError
from alpa_cfp.jit.recomputation import fastest_that_fits, recomputed
from alpa_cfp.jit.tracing import TracedFunction, trace
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_cache import PlannedModule
from alpa_cfp.profiling import TimeBudget
from alpa_cfp.search import MemoryBudgetError, MemoryUse
from alpa_cfp.strategies.recomputation import Recomputation

LAYERS = 5


def step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    def loss(weights: list[jax.Array]) -> jax.Array:
        y = x
        for weight in weights:
            y = jnp.tanh(y @ weight) @ weight.T
        return (y**2).mean()

    return jax.grad(loss)(weights)


SHAPES = [jax.ShapeDtypeStruct((8, 32), jnp.float32)] * LAYERS, jax.ShapeDtypeStruct((16, 8), jnp.float32)
TRACED = trace(step, SHAPES, {}, (), "cpu")
PARTS = len(forward_parts(find_blocks(read_graph(TRACED.module.bytecode))))
# What may be computed again: all parts but the last one.
CHEAP = Recomputation(tuple(range(PARTS - 1)), keeps_products=True)
HALF, ALL = (Recomputation(tuple(range(count)), keeps_products=False) for count in (PARTS // 2, PARTS - 1))


def does_not_fit(least_bytes: int, state_bytes: int = 0) -> MemoryBudgetError:
    return MemoryBudgetError(least_bytes, 10, (state_bytes, least_bytes - state_bytes, 0), ("", "", ""))


Outcome = float | Exception


def chosen(
    plain: Outcome,
    *,
    free_s: float | None = 1.0,
    budget: TimeBudget | None = None,
    measured: bool = True,
    **forms: Outcome,
) -> tuple[Recomputation | None, list[Recomputation | None]]:
    """What is computed again in the form that is taken, and the forms that were planned.

    Args:
        plain: The seconds of the plan without recomputation, or why there is none.
        free_s: What the fastest plan takes without a memory budget; None if that is not asked for.
        budget: The time for planning.
        measured: Whether plans are measured.
        forms: The same of each form: "cheap", "half", "all"; they do not fit if they are not given.
    """
    names = {CHEAP: "cheap", HALF: "half", ALL: "all"}
    planned: list[Recomputation | None] = []

    def made(program: TracedFunction, outcome: Outcome) -> PlannedModule:
        planned.append(program.recomputation)
        if isinstance(outcome, Exception):
            raise outcome
        measured_s = outcome if measured else None
        return PlannedModule(
            Plan("", (8,), (), outcome, MemoryUse(0, 0, 0), "measure", measured_s=measured_s), program.module
        )

    def of(program: TracedFunction) -> PlannedModule:
        assert program.recomputation is not None
        return made(program, forms.get(names[program.recomputation], does_not_fit(99)))

    wanted = None if free_s is None else lambda: free_s
    form, _ = fastest_that_fits(TRACED, lambda: (TRACED, made(TRACED, plain)), of, wanted, budget or TimeBudget())
    return form.recomputation, planned


def test_where_the_fastest_plan_fits_nothing_else_is_planned() -> None:
    assert chosen(1.0) == (None, [None])


def test_where_nothing_fits_the_fastest_form_that_fits_is_taken() -> None:
    assert chosen(does_not_fit(20), cheap=1.3, half=1.4, all=1.2) == (ALL, [None, CHEAP, HALF, ALL])


def test_a_plan_that_fits_only_by_splitting_more_gives_way_to_a_faster_one_that_computes_again() -> None:
    assert chosen(2.0, cheap=1.3)[0] == CHEAP
    assert chosen(1.2, cheap=1.3, half=1.5, all=1.6)[0] is None


def test_once_a_form_is_as_fast_as_the_fastest_plan_without_a_budget_no_other_is_planned() -> None:
    assert chosen(2.0, cheap=1.0, half=0.1) == (CHEAP, [None, CHEAP])


def test_plans_that_are_not_measured_are_compared_by_what_is_predicted() -> None:
    assert chosen(2.0, cheap=1.5, half=1.3, measured=False)[0] == HALF


def test_a_form_that_cannot_be_planned_or_run_is_left_out() -> None:
    assert chosen(2.0, cheap=NoRunnablePlanError(["lost"]), half=1.5)[0] == HALF


def test_where_no_form_fits_the_least_of_all_forms_is_said() -> None:
    with pytest.raises(MemoryBudgetError) as caught:
        chosen(does_not_fit(30), cheap=does_not_fit(25), half=does_not_fit(15), all=does_not_fit(20))
    assert caught.value.least_bytes == 15


def test_where_state_alone_is_too_large_no_other_form_is_planned() -> None:
    with pytest.raises(MemoryBudgetError):
        chosen(does_not_fit(30, state_bytes=11), cheap=AssertionError("planned"))
    assert chosen(does_not_fit(30, state_bytes=10), cheap=1.0)[0] == CHEAP


def test_when_the_time_for_planning_is_over_a_plan_that_fits_is_enough() -> None:
    over = TimeBudget(0.0)
    assert chosen(2.0, cheap=1.0, budget=over) == (None, [None])
    assert chosen(does_not_fit(20), cheap=1.3, half=1.0, budget=over) == (CHEAP, [None, CHEAP])


def test_where_the_memory_is_that_of_the_device_a_plan_that_fits_is_enough() -> None:
    assert chosen(2.0, free_s=None, cheap=1.0) == (None, [None])
    assert chosen(does_not_fit(20), free_s=None, cheap=1.0, half=0.9) == (HALF, [None, CHEAP, HALF, ALL])


def test_the_form_says_how_much_is_computed_again() -> None:
    form = recomputed(TRACED, CHEAP)
    assert form.recomputation == CHEAP
    assert form.caveats[-1].text.startswith(
        f"{PARTS - 1} of {PARTS} parts of the forward pass are computed again in the backward pass, products excepted"
    )
    assert replace(form, module=TRACED.module, caveats=(), recomputation=None) == TRACED
