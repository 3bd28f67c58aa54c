"""The factors of a loop's block: dims that the iterations of a loop, and of its backward loop, hand on or sum over."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from alpa_cfp.analysis.blocks import ParallelBlock, find_blocks
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.analysis.reading import read_graph
from unit.alpa_cfp.spmd.helpers import lower

SAMPLES, WIDTH, HIDDEN, STEPS = 8, 16, 32, 3
X = np.ones((SAMPLES, WIDTH), np.float32)
SQUARE = np.eye(WIDTH, dtype=np.float32)
UP, DOWN = np.ones((STEPS, WIDTH, HIDDEN), np.float32), np.ones((STEPS, HIDDEN, WIDTH), np.float32)


def recurrence(weights: jax.Array, x: jax.Array) -> jax.Array:
    return lax.scan(lambda c, _: (jnp.tanh(c @ weights), None), x, None, STEPS)[0].sum()


def layers(weights: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
    def layer(c: jax.Array, of_layer: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return c + jnp.tanh(c @ of_layer[0]) @ of_layer[1], None

    return (lax.scan(layer, x, weights)[0] ** 2).sum()


def loop_block(function: Callable[..., Any], *arguments: Any) -> ParallelBlock:
    blocks = find_blocks(read_graph(lower(function, arguments).bytecode))
    (block,) = (block for block in blocks.blocks if block.loop is not None)
    return block


def test_a_recurrence_is_split_by_samples_and_by_what_each_step_sums_over_or_computes() -> None:
    block = loop_block(recurrence, SQUARE, X)
    assert sorted((factor.side.value, factor.max_shards) for factor in block.factors) == [
        ("left", SAMPLES),
        ("right", WIDTH),
        ("right", WIDTH),
    ]


def test_a_factor_splits_the_backward_loop_as_the_forward_loop() -> None:
    block = loop_block(jax.value_and_grad(recurrence), SQUARE, X)
    assert [entry.role for entry in block.entries] == ["forward", "gradient"]
    assert len(block.factors) == 3
    for factor in block.factors:
        assert {op for op, _ in factor.places} == {entry.op for entry in block.entries}


def test_layers_in_a_loop_have_the_factors_of_a_layer() -> None:
    block = loop_block(jax.value_and_grad(layers), (UP, DOWN), X)
    assert sorted(factor.max_shards for factor in block.factors) == [SAMPLES, WIDTH, HIDDEN]
    forward, backward = (entry.op for entry in block.entries)
    assert all({op for op, _ in factor.places} == {forward, backward} for factor in block.factors)


def test_what_each_iteration_uses_whole_is_on_the_right() -> None:
    def project(x: jax.Array, weights: jax.Array) -> jax.Array:
        return lax.map(lambda each: each @ weights, x)

    block = loop_block(project, np.ones((STEPS, SAMPLES, WIDTH), np.float32), UP[0])
    sides = {factor.max_shards: factor.side for factor in block.factors}
    assert sides[SAMPLES] is Side.LEFT
    assert sides[HIDDEN] is Side.RIGHT
