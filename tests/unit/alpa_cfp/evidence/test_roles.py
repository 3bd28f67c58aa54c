"""A dim that both operands of a contraction have is called what it is, or by the combined word where that is open."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp.analysis.blocks import Blocks, find_blocks
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.evidence.roles import roles_of
from alpa_cfp.plan.plan_report import Role
from unit.alpa_cfp.spmd.helpers import lower
from unit.alpa_cfp.training_steps import model_module

BATCH, LENGTH, HEADS, WIDTH, EXPERTS = 8, 4, 2, 16, 4


def shared_dims(blocks: Blocks, weights: set[int], name: str = "") -> dict[int, Role]:
    """For each dim that both operands of a block's first contraction have its role, by its size."""
    return {
        factor.max_shards: role
        for block in blocks.blocks
        for factor, role in zip(block.factors, roles_of(blocks.graph, block, weights, name), strict=True)
        if factor.side is Side.BATCH
    }


def of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Blocks:
    return find_blocks(read_graph(lower(function, [np.ones(shape, np.float32) for shape in shapes]).bytecode))


def scores(q: jax.Array, k: jax.Array) -> jax.Array:
    """(batch, length, heads, width) twice -> (batch, heads, length, length)."""
    return jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=-1)


def test_heads_of_attention_are_told_by_the_weights_that_make_them() -> None:
    def attention(q_weight: jax.Array, k_weight: jax.Array, x: jax.Array) -> jax.Array:
        # Heads and samples are one dim, of which the heads are the outer part.
        split = ((x @ w).reshape(BATCH, LENGTH, HEADS, -1).transpose(2, 0, 1, 3) for w in (q_weight, k_weight))
        q, k = (each.reshape(HEADS * BATCH, LENGTH, -1) for each in split)
        return jax.nn.softmax(q @ k.transpose(0, 2, 1), axis=-1)

    blocks = of(attention, (WIDTH, WIDTH), (WIDTH, WIDTH), (BATCH, LENGTH, WIDTH))
    assert shared_dims(blocks, {0, 1}) == {HEADS * BATCH: "heads"}


def test_heads_of_given_queries_and_keys_are_not_told_from_other_dims() -> None:
    blocks = of(scores, *[(BATCH, LENGTH, HEADS, WIDTH)] * 2)
    assert shared_dims(blocks, set()) == {BATCH: "samples", HEADS: "batch"}


@pytest.mark.parametrize(
    ("name", "role"), [("encoder/attn/scores", "heads"), ("moe/up", "experts"), ("layer_0", "batch"), ("", "batch")]
)
def test_where_the_graph_does_not_tell_the_name_of_the_block_may(name: str, role: Role) -> None:
    assert shared_dims(of(scores, *[(BATCH, LENGTH, HEADS, WIDTH)] * 2), set(), name)[HEADS] == role


def test_what_a_router_sends_samples_to_are_experts() -> None:
    def experts(router: jax.Array, weight: jax.Array, x: jax.Array) -> jax.Array:
        sent = jax.nn.one_hot(jnp.argmax(x @ router, axis=-1), EXPERTS)
        return jnp.einsum("ecm,emh->ech", jnp.einsum("se,sm->esm", sent, x), weight)

    blocks = of(experts, (WIDTH, EXPERTS), (EXPERTS, WIDTH, WIDTH), (BATCH, WIDTH))
    assert shared_dims(blocks, {0, 1})[EXPERTS] == "experts"


def test_weights_for_each_place_of_the_input_are_not_called_experts() -> None:
    def each(weight: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.einsum("bem,emh->beh", x, weight)

    assert shared_dims(of(each, (EXPERTS, WIDTH, WIDTH), (BATCH, EXPERTS, WIDTH)), {0}) == {EXPERTS: "batch"}


@cache
def moe() -> Blocks:
    return find_blocks(read_graph(model_module("moe").bytecode))


def test_the_experts_of_a_model_are_told_from_its_groups_of_samples() -> None:
    weights = {
        number
        for number, value in enumerate(moe().graph.parameters)
        if len(moe().graph.shape(value)) in (2, 3) and moe().graph.values[value].dtype == "f32"
    }
    assert shared_dims(moe(), weights) == {16: "samples", 8: "experts"}
