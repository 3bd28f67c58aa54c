"""A plan within a memory budget computes parts of the forward pass again where it has to, with the same results."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from alpa_cfp import Plan, PlanOptions, autoshard
from alpa_cfp.search import MemoryBudgetError
from alpa_cfp.strategies.recomputation import Recomputation
from integration.serial import assert_equal_up_to_rounding, run_serially

pytestmark = pytest.mark.slow

LAYERS, WIDTH, SAMPLES = 6, 32, 256
# Weights, old and new, and samples take no more of a device, and activations do.
STATE_BYTES = 2 * 4 * LAYERS * 8 * WIDTH**2 + 4 * SAMPLES * WIDTH


def loss(weights: Any, x: jax.Array) -> jax.Array:
    for up, down in weights:
        x = x + jax.nn.gelu(x @ up) @ down
    return (x**2).mean()


def step(weights: Any, x: jax.Array) -> Any:
    value, gradients = jax.value_and_grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def arguments() -> tuple[Any, jax.Array]:
    keys = iter(jax.random.split(jax.random.key(0), 2 * LAYERS + 1))

    def drawn(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) / 6

    return [(drawn(WIDTH, 4 * WIDTH), drawn(4 * WIDTH, WIDTH)) for _ in range(LAYERS)], drawn(SAMPLES, WIDTH)


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:4]), ("data",))


ESTIMATE = {"costs": "estimate"}


def planned(**options: Any) -> Plan:
    return autoshard(step, mesh(), *arguments(), option=PlanOptions(progress=False, **options))


def least_bytes(**options: Any) -> int:
    """What the smallest plan needs."""
    with pytest.raises(MemoryBudgetError) as caught:
        planned(memory_budget_bytes=STATE_BYTES, **options)
    return caught.value.least_bytes


def assert_equals_serial(plan: Plan) -> None:
    found = jax.tree.map(np.asarray, plan.jit(step)(*arguments()))
    assert_equal_up_to_rounding(found, run_serially(step, *arguments()))


def test_below_what_any_plan_needs_otherwise_parts_are_computed_again_and_the_step_equals_the_serial_one() -> None:
    otherwise = least_bytes(recompute=False, **ESTIMATE)
    assert least_bytes(**ESTIMATE) < otherwise
    plan = planned(memory_budget_bytes=otherwise - 1, **ESTIMATE)
    assert plan.memory.total < otherwise
    assert isinstance(plan.signature and plan.signature.recomputation, Recomputation)
    assert "parts of the forward pass are computed again in the backward pass" in plan.explain()
    assert_equals_serial(plan)


def test_without_a_budget_and_within_a_wide_one_nothing_is_computed_again() -> None:
    for budget in (None, 10**9):
        plan = planned(memory_budget_bytes=budget, **ESTIMATE)
        assert plan.signature is not None
        assert plan.signature.recomputation is None
        assert "recomputation" not in plan.to_json()


def test_a_saved_plan_computes_the_same_again(tmp_path: Path) -> None:
    plan = planned(memory_budget_bytes=least_bytes(recompute=False, **ESTIMATE) - 1, **ESTIMATE)
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert_equals_serial(loaded)
    again = planned(plan=loaded, **ESTIMATE)
    assert again.signature == plan.signature
    assert again.strategies == plan.strategies


def test_a_measured_plan_is_within_its_budget_by_its_compiled_program(tmp_path: Path) -> None:
    measured = {"database": tmp_path / "profiles.db", "samples": 1, "refine": 1}
    budget = int(0.8 * least_bytes(recompute=False, **measured))
    plan = planned(memory_budget_bytes=budget, **measured)
    assert plan.signature is not None
    assert plan.signature.recomputation is not None
    found = plan.jit(step).compile(*arguments()).memory_bytes()
    assert sum(found.values()) - 2 * found["aliased"] <= budget
    assert_equals_serial(plan)
    replayed = planned(memory_budget_bytes=budget, **(measured | {"costs": "replay"}))
    assert (replayed.signature, replayed.strategies) == (plan.signature, plan.strategies)


def test_several_steps_in_a_row_equal_the_serial_ones() -> None:
    plan = planned(memory_budget_bytes=least_bytes(recompute=False, **ESTIMATE) - 1, **ESTIMATE)
    run = plan.jit(step)
    weights, x = arguments()
    expected, serial = weights, jax.jit(step)
    for _ in range(3):
        (weights, _), (expected, _) = run(weights, x), serial(expected, x)
    for found, value in zip(jax.tree.leaves(weights), jax.tree.leaves(expected), strict=True):
        assert jnp.allclose(found, value, rtol=1e-4, atol=1e-6)
