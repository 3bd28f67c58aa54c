"""With a memory budget that the fastest plan does not fit into, forms with recomputation are planned, too."""

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import pytest

from alpa_cfp.errors import PlanError, ReplayError
from alpa_cfp.jit.recomputation import Made, fastest_form, forms, recomputing, units_of
from alpa_cfp.jit.tracing import TracedFunction, trace
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_cache import PlannedModule
from alpa_cfp.plan.signature import Recomputed
from alpa_cfp.planner.options import PlanOptions
from alpa_cfp.profiling import TimeBudget
from alpa_cfp.search import MemoryBudgetError, MemoryUse
from alpa_cfp.strategies.block_strategy import BlockStrategy

LAYERS, MB = 8, 1_000_000


def step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    def loss(weights: list[jax.Array]) -> jax.Array:
        out = x
        for w in weights:
            out = jnp.sin(jnp.tanh(out @ w) @ w)
        return jnp.mean(out**2)

    return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]


ARRAY = jax.ShapeDtypeStruct((16, 16), jnp.float32)
PROGRAM = trace(step, ([ARRAY] * LAYERS, ARRAY), {}, (), "cpu")
FORMS = forms(units_of(PROGRAM))


@dataclass
class Planner:
    """Stands for the planner: the fastest plan of a program takes 1 s, or 0.02 s more for each part that is computed
    again, and it needs 100 MB, or 10 MB less for each. One that is sharded for memory takes twice as long, and needs
    half of that.
    """

    frugal: bool = True
    device_bytes: int | None = None
    fails: type[Exception] | None = None
    planned_forms: list[int] = field(default_factory=list)

    def __call__(self, form: TracedFunction, options: PlanOptions) -> PlannedModule:
        again = len(form.recomputed)
        if again and self.fails is not None:
            raise self.fails("no profiles")
        seconds, size = 1 + 0.02 * again, (100 - 10 * again) * MB
        budget, way = options.memory_budget_bytes or self.device_bytes, 0
        if budget is not None:
            self.planned_forms.append(again)
        if budget is not None and size > budget:
            seconds, size, way = 2 * seconds, size // 2, 1
            if not self.frugal or size > budget:
                least = size if self.frugal else 2 * size
                raise MemoryBudgetError(least, budget, (0, least, 0), ("block 0",) * 3)
        plan = Plan("", (8,), (BlockStrategy((way,)),), seconds, MemoryUse(0, size, 0), "estimate")
        return PlannedModule(plan, form.module)


def chosen(
    planner: Planner, budget: int | None, *, recompute: bool | None = None, time: TimeBudget | None = None
) -> tuple[TracedFunction, Plan]:
    options = PlanOptions(memory_budget_bytes=budget, recompute=recompute)

    def first() -> Made:
        return PROGRAM, planner(PROGRAM, options)

    program, made = fastest_form(
        PROGRAM, first, planner, options, time or TimeBudget(), device_bytes=planner.device_bytes
    )
    return program, made.plan


def test_forms_compute_more_and_more_again_and_differ() -> None:
    assert 2 <= len(FORMS) == len(set(FORMS)) <= 5
    assert max(map(len, FORMS)) == len(units_of(PROGRAM))


def test_of_equal_layers_the_first_ones_are_computed_again() -> None:
    part = min((form for form in FORMS if not form[0].keeps_products), key=len)
    # The first layer of all differs: what enters it is an argument.
    assert [each.unit for each in part] == list(range(1, 1 + len(part)))


@pytest.mark.parametrize(("budget", "recompute"), [(None, None), (None, True), (50 * MB, False)])
def test_without_a_budget_or_where_it_is_not_wanted_nothing_is_computed_again(
    budget: int | None, recompute: bool | None
) -> None:
    planner = Planner()
    program, _ = chosen(planner, budget, recompute=recompute)
    assert program is PROGRAM
    assert len(planner.planned_forms) == (budget is not None)


def test_a_budget_that_the_fastest_plan_fits_into_changes_nothing() -> None:
    planner = Planner()
    program, _ = chosen(planner, 100 * MB)
    assert program is PROGRAM
    assert planner.planned_forms == [0]


def test_recomputation_is_taken_where_shardings_that_fit_take_longer() -> None:
    program, plan = chosen(Planner(), 75 * MB)
    assert len(program.recomputed) == min(len(form) for form in FORMS if len(form) >= 3)
    assert plan.predicted_s == 1 + 0.02 * len(program.recomputed)
    assert plan.memory.total <= 75 * MB


def test_forms_that_could_not_be_faster_are_not_planned() -> None:
    planner = Planner()
    program, _ = chosen(planner, 75 * MB)
    assert len(program.recomputed) <= max(planner.planned_forms) < max(map(len, FORMS))


def test_recomputation_is_taken_where_nothing_else_fits() -> None:
    program, plan = chosen(Planner(frugal=False), 60 * MB)
    assert len(program.recomputed) >= 4
    assert plan.memory.total <= 60 * MB


def test_the_memory_of_a_device_asks_for_recomputation_only_where_nothing_else_fits() -> None:
    planner = Planner(device_bytes=75 * MB)
    assert chosen(planner, None)[0] is PROGRAM
    assert planner.planned_forms == [0]
    program, plan = chosen(Planner(frugal=False, device_bytes=60 * MB), None)
    assert len(program.recomputed) >= 4
    assert plan.memory.total <= 60 * MB
    program, _ = chosen(Planner(device_bytes=75 * MB), None, recompute=True)
    assert program.recomputed


def test_when_the_time_for_planning_is_over_a_plan_that_fits_is_enough_and_otherwise_the_first_that_does() -> None:
    planner, over = Planner(), TimeBudget(0.0)
    assert chosen(planner, 75 * MB, time=over)[0] is PROGRAM
    assert planner.planned_forms == [0]
    _, plan = chosen(Planner(frugal=False), 60 * MB, time=over)
    assert plan.memory.total <= 60 * MB


def test_if_nothing_fits_the_error_is_that_of_the_form_which_needs_least() -> None:
    with pytest.raises(MemoryBudgetError) as caught:
        chosen(Planner(frugal=False), MB)
    assert caught.value.least_bytes == (100 - 10 * max(map(len, FORMS))) * MB


def test_a_form_that_cannot_be_planned_is_left_out() -> None:
    program, plan = chosen(Planner(fails=ReplayError), 75 * MB)
    assert program is PROGRAM
    assert plan.predicted_s == 2


def test_a_program_is_made_again_from_what_a_plan_keeps_of_it() -> None:
    for form in FORMS:
        made = recomputing(PROGRAM, form)
        assert made.recomputed == form
        assert made.module.bytecode == recomputing(PROGRAM, form).module.bytecode != PROGRAM.module.bytecode


def test_parts_of_another_program_are_refused() -> None:
    with pytest.raises(PlanError, match="for another program"):
        recomputing(PROGRAM, (Recomputed(99, (0,), False, 1),))


def test_a_program_of_which_nothing_is_computed_again_is_itself() -> None:
    assert recomputing(PROGRAM, ()) is PROGRAM
    assert replace(PROGRAM, recomputed=()) == PROGRAM
