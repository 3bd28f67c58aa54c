"""Within a memory budget samples may go through a step in micro-batches: it fits, and equals the serial run."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp import Plan, PlanOptions, autoshard, target
from alpa_cfp.errors import MicroBatchError
from alpa_cfp.search import MemoryBudgetError
from integration.serial import assert_equal_up_to_rounding, run_serially
from integration.test_recomputation import arguments, mesh, step

pytestmark = pytest.mark.slow

ESTIMATED = PlanOptions(costs="estimate", recompute=False)


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, PlanOptions]:
    """A plan without a budget, and its options."""
    database = tmp_path_factory.mktemp("micro batches") / "profiles.sqlite"
    option = PlanOptions(database=database, samples=2, refine=1, progress=False, recompute=False)
    return autoshard(step, mesh(), *arguments(), option=option), option


@pytest.fixture(scope="module")
def planned(without: tuple[Plan, PlanOptions]) -> Plan:
    """The plan within 40% of what that one needs."""
    plan, option = without
    assert plan.needed_bytes is not None
    limited = replace(option, memory_budget_bytes=int(0.4 * plan.needed_bytes))
    with pytest.raises(MemoryBudgetError):
        autoshard(step, mesh(), *arguments(), option=limited)
    return autoshard(step, mesh(), *arguments(), batch_argnums=1, option=limited)


def test_where_nothing_else_fits_samples_go_in_micro_batches_and_the_compiled_program_fits(
    without: tuple[Plan, PlanOptions], planned: Plan
) -> None:
    assert planned.signature is not None
    assert planned.signature.micro_batches is not None
    assert planned.signature.micro_batches.batch_argnums == (1,)
    found = planned.jit(step).compile(*arguments()).memory_bytes()
    assert sum(found.values()) - 2 * found["aliased"] <= 0.4 * (without[0].needed_bytes or 0)


def test_a_plan_from_its_file_runs_and_equals_the_serial_run(planned: Plan, tmp_path: Path) -> None:
    planned.save(tmp_path / "plan.json")
    function = Plan.load(tmp_path / "plan.json").jit(step)
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, function(*arguments())), run_serially(step, *arguments()))


def test_a_given_plan_is_made_again_as_it_was(planned: Plan) -> None:
    again = autoshard(step, mesh(), *arguments(), option=PlanOptions(costs="estimate", plan=planned))
    assert again.program == planned.program
    assert again.signature == planned.signature


def test_micro_batches_are_said_in_words_and_on_the_page(without: tuple[Plan, PlanOptions], planned: Plan) -> None:
    assert "the samples go through the step in" in planned.explain()
    assert "The samples go through the step in" in planned.report()
    assert "micro-batches" not in without[0].explain()
    assert "micro_batches" not in without[0].to_json()


def test_without_a_budget_samples_go_through_at_once() -> None:
    plan = autoshard(step, mesh(), *arguments(), batch_argnums=1, option=ESTIMATED)
    assert plan == autoshard(step, mesh(), *arguments(), option=ESTIMATED)


def test_the_decorator_plans_in_micro_batches_too() -> None:
    with pytest.raises(MemoryBudgetError) as caught:
        autoshard(step, mesh(), *arguments(), option=replace(ESTIMATED, memory_budget_bytes=1))
    budget = int(0.9 * caught.value.least_bytes)
    decorated = autoshard(mesh(), batch_argnums=1, option=ESTIMATED, memory_budget_bytes=budget)(step)
    result = jax.tree.map(np.asarray, decorated(*arguments()))
    assert decorated.plan.signature is not None
    assert decorated.plan.signature.micro_batches is not None
    assert_equal_up_to_rounding(result, run_serially(step, *arguments()))


def test_arguments_without_samples_are_an_error() -> None:
    limited = replace(ESTIMATED, memory_budget_bytes=1)
    with pytest.raises(MicroBatchError, match="name arguments whose arrays all have the same number"):
        autoshard(step, mesh(), *arguments(), batch_argnums=0, option=limited)


def test_a_loop_over_time_steps_within_a_budget_has_whole_sums() -> None:
    """What such a loop sums over devices cannot stay in parts, which is tried where nothing else fits."""

    def recurrent(weights: jax.Array, x: jax.Array) -> jax.Array:
        def loss(weights: jax.Array) -> jax.Array:
            states = jax.lax.scan(lambda state, own: (jnp.tanh(state @ weights + own),) * 2, x[0], x)[1]
            return jnp.mean((states - 1) ** 2)

        return weights - 0.1 * jax.grad(loss)(weights)

    drawn = np.random.default_rng(0)
    weights, x = (drawn.normal(size=shape).astype(np.float32) / 16 for shape in ((128, 128), (8, 64, 128)))
    with pytest.raises(MemoryBudgetError):
        autoshard(recurrent, mesh(), weights, x, option=replace(ESTIMATED, memory_budget_bytes=1))
    plan = autoshard(recurrent, mesh(), weights, x, option=replace(ESTIMATED, split_sums=True))
    assert_equal_up_to_rounding(np.asarray(plan.jit(recurrent)(weights, x)), run_serially(recurrent, weights, x))


def test_the_memory_of_a_target_is_a_budget_too() -> None:
    """Where nothing is said, a plan for devices that are not here has to fit into their memory."""
    chip = target("h100:1x2")
    assert chip.chip.memory_bytes > 0
    small = replace(chip, chip=replace(chip.chip, memory_bytes=1))
    with pytest.raises(MicroBatchError, match="name arguments whose arrays all have the same number"):
        autoshard(step, small.mesh(), *arguments(), batch_argnums=0, option=ESTIMATED)
