"""Within a memory budget a plan may compute parts of the forward pass again: it fits, and equals the serial run."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from alpa_cfp import Plan, PlanOptions, autoshard
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


def test_a_plan_with_recomputation_fits_where_shardings_do_not_and_is_made_again_from_its_file(tmp_path: Path) -> None:
    option = PlanOptions(database=tmp_path / "profiles.sqlite", samples=2, refine=1, progress=False)
    without = autoshard(step, mesh(), *arguments(), option=option)
    assert without.needed_bytes is not None
    budget = int(0.6 * without.needed_bytes)
    limited = replace(option, memory_budget_bytes=budget)
    with pytest.raises(MemoryBudgetError):
        autoshard(step, mesh(), *arguments(), option=replace(limited, recompute=False))

    plan = autoshard(step, mesh(), *arguments(), option=limited)
    assert plan.signature is not None
    assert plan.signature.recomputed
    assert plan.needed_bytes is not None
    assert plan.needed_bytes <= budget
    assert "the backward pass computes blocks" in plan.explain()
    assert "the backward pass computes blocks" in plan.report().replace("The", "the")

    plan.save(tmp_path / "plan.json")
    function = Plan.load(tmp_path / "plan.json").jit(step)
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, function(*arguments())), run_serially(step, *arguments()))
    analysis = function.memory_analysis()
    assert analysis.temp_size_in_bytes < 0.6 * without.needed_bytes

    replayed = autoshard(step, mesh(), *arguments(), option=replace(limited, costs="replay"))
    assert replayed.to_json() == replace(plan, costs="replay").to_json()
    again = autoshard(step, mesh(), *arguments(), option=PlanOptions(costs="estimate", plan=plan))
    assert again.program == plan.program
    assert again.signature == plan.signature


def test_a_plan_without_recomputation_is_written_as_before() -> None:
    plan = autoshard(step, mesh(), *arguments(), option=PlanOptions(costs="estimate"))
    assert "recomputed" not in plan.to_json()
