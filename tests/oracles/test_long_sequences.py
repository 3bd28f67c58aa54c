"""How long sequences are split, by the estimates for a machine of eight H100.

Oracles: AutoParallel's plans of LLaMA 3 (meta-pytorch/autoparallel, docs/adaptive_sharding.md), and Megatron's sequence
parallelism (arXiv 2205.05198).

Where a device has more tokens than a product has outputs, to split the tokens reads less than to split the weights;
attention is split by heads in any case, and values change places between the two.
"""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from alpa_cfp import Plan, PlanOptions, autoshard, target
from alpa_cfp.search import MemoryBudgetError

HEAD = 128


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    square = jnp.mean(x.astype(jnp.float32) ** 2, -1, keepdims=True)
    return x * jax.lax.rsqrt(square + 1e-6).astype(x.dtype) * scale


def layer(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """A layer of LLaMA without rotations and masks, which nothing here depends on."""
    h = norm(x, weights["attention norm"])
    q, k, v = (jnp.einsum("bsd,dhk->bshk", h, weights[name]) for name in "qkv")
    scores = jax.nn.softmax(jnp.einsum("bqhk,bthk->bhqt", q, k).astype(jnp.float32) / HEAD**0.5, -1).astype(x.dtype)
    x = x + jnp.einsum("bqhk,hkd->bqd", jnp.einsum("bhqt,bthk->bqhk", scores, v), weights["o"])
    h = norm(x, weights["mlp norm"])
    return x + (jax.nn.silu(h @ weights["gate"]) * (h @ weights["up"])) @ weights["down"]


def step(layers: list[dict[str, jax.Array]], x: jax.Array, y: jax.Array) -> Any:
    def loss(layers: list[dict[str, jax.Array]]) -> jax.Array:
        out = x
        for weights in layers:
            out = layer(weights, out)
        return jnp.mean((out - y).astype(jnp.float32) ** 2)

    value, gradient = jax.value_and_grad(loss)(layers)
    return jax.tree.map(lambda weight, own: weight - 0.1 * own, layers, gradient), value


@cache
def plan(
    samples: int, tokens: int, width: int, hidden: int, mesh: tuple[int, ...], split_sums: bool | None, budget: int
) -> Plan:
    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    heads = width // HEAD
    weights = {"attention norm": array(width), "mlp norm": array(width), "o": array(heads, HEAD, width)}
    weights |= dict.fromkeys("qkv", array(width, heads, HEAD))
    weights |= {"gate": array(width, hidden), "up": array(width, hidden), "down": array(hidden, width)}
    data = array(samples, tokens, width)
    option = PlanOptions(
        costs="estimate", progress=False, split_sums=split_sums, memory_budget_bytes=budget or None
    )  # fmt: skip
    on = target("h100:1x8").mesh(mesh)
    return autoshard(step, on, [weights] * 2, data, data, donate_argnums=0, option=option)


def roles(of: Plan) -> dict[str, set[str | None]]:
    """What is split in products with scores and in all others."""
    assert of.account is not None
    found: dict[str, set[str | None]] = {"attention": set(), "others": set()}
    for block in of.account.blocks:
        is_attention = "bthk" in block.name
        found["attention" if is_attention else "others"].update(of.account.chosen(block).roles)
    return found


def test_more_tokens_than_outputs_are_split_by_positions_and_attention_by_heads() -> None:
    found = roles(plan(1, 16_384, 4096, 11_008, (8,), None, 0))
    assert found == {"attention": {"heads"}, "others": {"samples"}}


def test_fewer_tokens_than_outputs_are_whole_and_weights_are_split() -> None:
    found = roles(plan(1, 2048, 4096, 11_008, (8,), None, 0))
    assert found["attention"] == {"heads"}
    assert found["others"] <= {"columns", "rows"}


def has_split_sums(of: Plan) -> bool:
    return any(strategy.sums_along is not None for strategy in of.strategies)


def test_sums_stay_in_parts_where_that_is_asked_for() -> None:
    few_tokens = (1, 2048, 4096, 11_008, (8,))
    assert has_split_sums(plan(*few_tokens, True, 0))
    assert not has_split_sums(plan(*few_tokens, None, 0))
    assert "sums kept in parts (split by samples" in plan(*few_tokens, True, 0).explain()


def test_with_little_memory_a_plan_with_sums_in_parts_is_faster_than_the_best_without() -> None:
    large = (2, 4096, 8192, 28_672, (2, 4))
    budget = int(0.93 * plan(*large, False, 0).memory.total)
    whole, parts = plan(*large, False, budget), plan(*large, True, budget)
    assert has_split_sums(parts)
    assert parts.predicted_s < 0.99 * whole.predicted_s


def test_sums_stay_in_parts_where_no_plan_fits_otherwise() -> None:
    large = (2, 2048, 8192, 28_672, (2, 4))
    with pytest.raises(MemoryBudgetError) as least:
        plan(*large, False, 1)
    with pytest.raises(MemoryBudgetError) as least_in_parts:
        plan(*large, None, 1)
    budget = (least.value.least_bytes + least_in_parts.value.least_bytes) // 2
    assert least_in_parts.value.least_bytes < budget
    found = plan(*large, None, budget)
    assert has_split_sums(found)
    assert found.memory.total <= budget
