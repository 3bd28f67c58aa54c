"""Meshes of three axes: plans equal the serial run, and are as good as those for meshes that they refine."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, Mesh

from alpa_cfp import Plan, PlanOptions, autoshard
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.jit.tracing import trace
from alpa_cfp.search import MemoryBudgetError
from alpa_cfp.search.problem import MemoryUse
from alpa_cfp.strategies.block_strategy import StateSharding, strategies_of
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from integration.serial import assert_equal_up_to_rounding, expected_steps, run_serially

pytestmark = pytest.mark.slow

CUBE, NAMES = (2, 2, 2), ("data", "fsdp", "tensor")


def cube() -> Mesh:
    return Mesh(np.array(jax.devices()[:8]).reshape(CUBE), NAMES)


def estimated(memory_budget_bytes: int | None = None, **options: Any) -> PlanOptions:
    return PlanOptions(costs="estimate", memory_budget_bytes=memory_budget_bytes, **options)


def numpy(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def step(weights: dict[str, jax.Array], x: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    """A training step of two layers."""

    def loss(weights: dict[str, jax.Array]) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ weights["up"]) @ weights["down"] - x) ** 2)

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), value


def shapes(samples: int, width: int) -> tuple[dict[str, jax.ShapeDtypeStruct], jax.ShapeDtypeStruct]:
    def of(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    return {"up": of(width, 4 * width), "down": of(4 * width, width)}, of(samples, width)


def arrays(samples: int, width: int) -> Any:
    drawn = np.random.default_rng(0)
    return jax.tree.map(
        lambda each: jnp.asarray(drawn.normal(size=each.shape), jnp.float32) / 4, shapes(samples, width)
    )


@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_training_steps_along_three_axes_equal_the_serial_ones(model: str) -> None:
    built = build(model)
    fn = train_step(built, jax.value_and_grad)
    with pytest.raises(MemoryBudgetError) as caught:
        autoshard(fn, cube(), built.state, built.batch, donate_argnums=0, option=estimated(1))
    option = estimated(caught.value.least_bytes)  # so that state is split along all axes
    plan = autoshard(fn, cube(), built.state, built.batch, donate_argnums=0, option=option)
    used = {name for spec in plan.in_shardings.values() for name in jax.tree.leaves(tuple(spec))}
    assert used == set(NAMES)
    planned, state = plan.jit(fn), jax.tree.map(jnp.copy, built.state)
    for expected in expected_steps(model, None, 2):
        state, metrics, grads = planned(state, built.batch)
        assert_equal_up_to_rounding(numpy((state, metrics, grads)), (expected.state, expected.metrics, expected.grads))


def test_a_measured_plan_along_three_axes_equals_the_serial_run(tmp_path: Any) -> None:
    args = arrays(64, 32)
    option = PlanOptions(database=tmp_path / "profiles.sqlite", samples=1, refine=1, progress=False)
    plan = autoshard(step, cube(), *args, donate_argnums=0, option=option)
    assert plan.measured_s is not None
    assert_equal_up_to_rounding(numpy(plan.jit(step)(*jax.tree.map(jnp.copy, args))), run_serially(step, *args))


@pytest.fixture(scope="module")
def program() -> AnalysedProgram:
    return AnalysedProgram(trace(step, shapes(16, 8), {}, 0, "cpu").module)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_combination_of_strategies_along_three_axes_equals_the_serial_run(
    program: AnalysedProgram, data: st.DataObject
) -> None:
    strategies = tuple(
        data.draw(
            st.builds(
                lambda strategy, kept: type(strategy)(strategy.factors, kept),
                st.sampled_from(strategies_of(block, CUBE)),
                st.sampled_from(list(StateSharding)),
            )
        )
        for block in program.blocks.blocks
    )
    drawn = Plan(program.digest, CUBE, strategies, 0.0, MemoryUse(0, 0, 0), "estimate")
    args = arrays(16, 8)
    plan = autoshard(step, cube(), *args, donate_argnums=0, option=estimated(plan=drawn))
    assert plan.strategies == strategies
    assert_equal_up_to_rounding(numpy(plan.jit(step)(*jax.tree.map(jnp.copy, args))), run_serially(step, *args))


@pytest.mark.parametrize(("samples", "width"), [(4096, 64), (64, 1024), (1024, 512)])
@pytest.mark.parametrize("share", [None, 0.3])
def test_the_best_plan_along_three_axes_is_at_least_as_good_as_along_products_of_them(
    samples: int, width: int, share: float | None
) -> None:
    args = shapes(samples, width)
    state_bytes = sum(math.prod(each.shape) * 4 for each in jax.tree.leaves(args[0]))
    budget = None if share is None else int(share * state_bytes) + 4 * samples * width * 8

    def best_s(*shape: int) -> float:
        mesh = AbstractMesh(shape, NAMES[: len(shape)])
        try:
            return autoshard(step, mesh, *args, donate_argnums=0, option=estimated(budget)).predicted_s
        except MemoryBudgetError:
            return math.inf

    coarser = [best_s(8), best_s(2, 4), best_s(4, 2)]
    assert min(coarser) < math.inf
    assert best_s(*CUBE) <= min(coarser) * (1 + 1e-9)


def test_of_a_mesh_of_three_axes_all_shapes_are_planned_for_that_it_does_not_refine() -> None:
    args = shapes(64, 32)
    plan = autoshard(step, AbstractMesh(CUBE, NAMES), *args, option=estimated(logical_mesh_shapes="all"))
    assert plan.mesh_shape == CUBE


@pytest.mark.parametrize(("shapes_asked", "planned"), [("all", (2, 4)), ("three_axes", CUBE)])
def test_a_plan_for_another_shape_than_the_meshs_has_axes_of_its_own_and_equals_the_serial_run(
    shapes_asked: str, planned: tuple[int, ...]
) -> None:
    args, mesh = arrays(64, 32), Mesh(np.array(jax.devices()[:8]), ("data",))
    expected = run_serially(step, *args)
    plan = autoshard(step, mesh, *args, option=estimated(logical_mesh_shapes=shapes_asked))
    assert plan.mesh_shape == planned
    kept = Plan.from_json(plan.to_json())
    assert kept.signature is not None
    assert kept.signature.axis_names == tuple(f"axis_{number}" for number in range(len(planned)))
    assert_equal_up_to_rounding(numpy(kept.jit(step)(*args)), expected)
    decorated = autoshard(mesh, costs="estimate", logical_mesh_shapes=shapes_asked)(step)
    assert_equal_up_to_rounding(numpy(decorated(*args)), expected)
    abstract = autoshard(step, AbstractMesh((8,), ("data",)), *args, option=estimated(logical_mesh_shapes=shapes_asked))
    assert abstract.strategies == plan.strategies
