"""A mesh of a target is one to plan for: estimates need no compiler, its chip's memory is the budget, nothing runs."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from alpa_cfp import Plan, PlanOptions, autoshard, target
from alpa_cfp.errors import NoDevicesError
from alpa_cfp.jit.meshes import platform_of, request_for
from alpa_cfp.search import MemoryBudgetError

ESTIMATE = PlanOptions(costs="estimate", progress=False)


def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    value, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * grad, value


def planned(width: int, name: str = "h100:1x8") -> Plan:
    w, x = jax.ShapeDtypeStruct((width, width), jnp.float32), jax.ShapeDtypeStruct((1 << 16, width), jnp.float32)
    return autoshard(step, target(name).mesh(axis_names=("data",)), w, x, donate_argnums=0, option=ESTIMATE)


def test_a_plan_for_a_target_has_the_names_of_its_mesh() -> None:
    assert planned(64).in_shardings["args[1]"] == PartitionSpec("data")


def test_the_budget_of_a_target_is_what_a_program_can_have_of_its_memory() -> None:
    mesh = target("v5e:2x4").mesh()
    assert request_for(mesh).memory_budget_bytes == mesh.target.chip.memory_bytes
    with pytest.raises(MemoryBudgetError, match=f"the budget is {mesh.target.chip.memory_bytes:,}"):
        planned(1 << 17, "v5e:2x4")


@pytest.mark.parametrize(("name", "platform"), [("h100:1x8", "gpu"), ("v5e:2x4", "tpu")])
def test_a_step_is_lowered_for_the_targets_platform(name: str, platform: str) -> None:
    assert platform_of(target(name).mesh()) == platform


def test_nothing_runs_on_a_mesh_of_a_target() -> None:
    mesh = target("h100:1x8").mesh(axis_names=("data",))
    with pytest.raises(NoDevicesError, match="nothing can run on h100:1x8, which is a target"):
        planned(64).jit(step, mesh)(jnp.ones((64, 64)), jnp.ones((1 << 16, 64)))  # pyright: ignore[reportArgumentType]
