"""Within a memory budget a plan may compute parts of the forward pass again: it fits, and equals the serial run."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from alpa_cfp import Plan, PlanOptions, autoshard, target
from alpa_cfp.search import MemoryBudgetError
from integration.serial import assert_equal_up_to_rounding, run_serially

pytestmark = pytest.mark.slow

LAYERS, WIDTH, ROWS = 6, 16, 8192


def layer(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    normed = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-3)
    return x + jax.nn.gelu(normed @ w["up"]) @ w["down"]


def step(layers: list[dict[str, jax.Array]], x: jax.Array) -> Any:
    def loss(layers: list[dict[str, jax.Array]]) -> jax.Array:
        out = x
        for own in layers:
            out = layer(own, out)
        return jnp.mean((out - 1) ** 2)

    value, gradients = jax.value_and_grad(loss)(layers)
    return jax.tree.map(lambda w, own: w - 0.1 * own, layers, gradients), value


@cache
def arguments() -> tuple[Any, Any]:
    drawn = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return drawn.normal(size=shape).astype(np.float32) / 4

    return [{"up": array(WIDTH, 2 * WIDTH), "down": array(2 * WIDTH, WIDTH)} for _ in range(LAYERS)], array(ROWS, WIDTH)


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:2]), ("data",))


@dataclass(frozen=True)
class Planned:
    """A step that was planned without a budget, and within one.

    Attributes:
        without: The plan without a budget.
        limited: The options with the budget: 60% of what that plan needs.
        plan: The plan within it.
    """

    without: Plan
    limited: PlanOptions
    plan: Plan

    @property
    def budget(self) -> int:
        assert self.limited.memory_budget_bytes is not None
        return self.limited.memory_budget_bytes


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    database = tmp_path_factory.mktemp("recomputation") / "profiles.sqlite"
    option = PlanOptions(database=database, samples=2, refine=1, progress=False)
    without = autoshard(step, mesh(), *arguments(), option=option)
    assert without.needed_bytes is not None
    limited = replace(option, memory_budget_bytes=int(0.6 * without.needed_bytes))
    return Planned(without, limited, autoshard(step, mesh(), *arguments(), option=limited))


def test_where_shardings_do_not_fit_a_plan_computes_again_and_fits_by_its_compiled_program(planned: Planned) -> None:
    with pytest.raises(MemoryBudgetError):
        autoshard(step, mesh(), *arguments(), option=replace(planned.limited, recompute=False))
    assert planned.plan.signature is not None
    assert planned.plan.signature.recomputed
    assert planned.plan.needed_bytes is not None
    assert planned.plan.needed_bytes <= planned.budget
    function = planned.plan.jit(step).compile(*arguments())
    found = function.memory_bytes()
    assert sum(found.values()) - 2 * found["aliased"] <= planned.budget


def test_what_is_computed_again_is_said_in_words_and_on_the_page(planned: Planned) -> None:
    assert "the backward pass computes blocks" in planned.plan.explain()
    assert "The backward pass computes blocks" in planned.plan.report()
    assert "the backward pass computes" not in planned.without.explain()


def test_a_plan_from_its_file_runs_and_equals_the_serial_run(planned: Planned, tmp_path: Path) -> None:
    planned.plan.save(tmp_path / "plan.json")
    function = Plan.load(tmp_path / "plan.json").jit(step)
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, function(*arguments())), run_serially(step, *arguments()))


def test_a_replay_computes_the_same_again(planned: Planned) -> None:
    replayed = autoshard(step, mesh(), *arguments(), option=replace(planned.limited, costs="replay"))
    assert replayed.to_json() == replace(planned.plan, costs="replay").to_json()


def test_a_given_plan_is_made_again_as_it_was(planned: Planned) -> None:
    again = autoshard(step, mesh(), *arguments(), option=PlanOptions(costs="estimate", plan=planned.plan))
    assert again.program == planned.plan.program
    assert again.signature == planned.plan.signature


def test_what_xla_partitions_equals_the_serial_run_with_recomputation_too() -> None:
    """A loop of unknown length leaves the program to XLA's partitioner, which gets the barriers as calls, too."""

    def looping(layers: Any, x: jax.Array) -> Any:
        new, value = step(layers, x)
        halved = jax.lax.while_loop(lambda y: jnp.abs(y).max() > 0.1, lambda y: 0.5 * y - 0.01 * y.mean(0), x)
        return new, value, halved

    option = PlanOptions(costs="estimate", memory_budget_bytes=None)
    with pytest.raises(MemoryBudgetError) as caught:
        autoshard(looping, mesh(), *arguments(), option=replace(option, memory_budget_bytes=1, recompute=False))
    limited = replace(option, memory_budget_bytes=int(0.9 * caught.value.least_bytes))
    plan = autoshard(looping, mesh(), *arguments(), option=limited)
    assert plan.signature is not None
    assert plan.signature.recomputed
    found = jax.tree.map(np.asarray, plan.jit(looping)(*arguments()))
    assert_equal_up_to_rounding(found, run_serially(looping, *arguments()))


def test_a_plan_without_recomputation_is_written_as_before() -> None:
    plan = autoshard(step, mesh(), *arguments(), option=PlanOptions(costs="estimate"))
    assert "recomputed" not in plan.to_json()


def test_a_step_that_fits_into_the_memory_of_a_target_by_recomputation_alone_has_a_plan() -> None:
    estimated, chip = PlanOptions(costs="estimate"), target("h100:1x2")
    least = []
    for recompute in (False, None):
        none = replace(chip, chip=replace(chip.chip, memory_bytes=1))
        with pytest.raises(MemoryBudgetError) as caught:
            autoshard(step, none.mesh(), *arguments(), option=replace(estimated, recompute=recompute))
        least.append(caught.value.least_bytes)
    without, by_recomputation = least
    assert by_recomputation < without
    small = replace(chip, chip=replace(chip.chip, memory_bytes=(without + by_recomputation) // 2))
    plan = autoshard(step, small.mesh(), *arguments(), option=estimated)
    assert plan.signature is not None
    assert plan.signature.recomputed
    assert plan.memory.total <= small.chip.memory_bytes
