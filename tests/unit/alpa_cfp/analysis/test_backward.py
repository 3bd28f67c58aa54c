"""The start of a program's backward pass, and the ranges of it that rematerialise values."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alpa_cfp.analysis.backward import backward_start, rematerialised_ranges
from alpa_cfp.analysis.blocks import Blocks, find_blocks
from alpa_cfp.analysis.graph import BARRIER, STEP_BARRIER
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.jit.tracing import trace
from unit.alpa_cfp.spmd.helpers import lower

ARRAY = np.ones((16, 16), np.float32)


def blocks_of(function: Any, count: int) -> Blocks:
    return find_blocks(
        read_graph(lower(jax.grad(function, argnums=tuple(range(count - 1))), (ARRAY,) * count).bytecode)
    )


def layer(x: Any, v: Any, w: Any) -> Any:
    return jnp.tanh(x @ v) @ w


def two_layers(a: Any, b: Any, c: Any, d: Any, x: Any) -> Any:
    again = jax.checkpoint(layer)
    return jnp.sum((again(again(x, a, b), c, d) @ x) ** 2)


def test_the_backward_pass_begins_with_the_first_gradient() -> None:
    blocks = blocks_of(lambda v, w, x: jnp.sum(layer(x, v, w) ** 2), 3)
    entries = [entry for block in blocks.blocks for entry in block.entries]
    assert backward_start(blocks) == min(entry.op for entry in entries if entry.role == "gradient")


def test_a_program_without_gradients_has_no_backward_pass() -> None:
    blocks = find_blocks(read_graph(lower(layer, (ARRAY,) * 3).bytecode))
    assert backward_start(blocks) == len(blocks.graph.ops)
    assert rematerialised_ranges(blocks) == ()


def test_a_program_that_keeps_everything_computes_nothing_again() -> None:
    assert rematerialised_ranges(blocks_of(lambda v, w, x: jnp.sum(layer(x, v, w) ** 2), 3)) == ()


def test_each_layer_is_computed_again_from_its_barrier_to_its_first_gradient() -> None:
    blocks = blocks_of(two_layers, 5)
    parts = rematerialised_ranges(blocks)
    roles = {entry.op: entry.role for block in blocks.blocks for entry in block.entries}
    assert [blocks.graph.ops[part.start].name for part in parts] == [BARRIER] * 2
    assert [roles.get(part.stop) for part in parts] == ["gradient"] * 2
    assert [[roles[op] for op in part if op in roles] for part in parts] == [["rematerialised"]] * 2


def test_the_backward_pass_begins_with_what_its_first_gradient_needs_computed_again() -> None:
    whole = jax.checkpoint(lambda v, w, x: jnp.sum(layer(x, v, w) ** 2))
    blocks = blocks_of(whole, 3)
    gradient = min(entry.op for block in blocks.blocks for entry in block.entries if entry.role == "gradient")
    (part,) = rematerialised_ranges(blocks)
    assert part == range(backward_start(blocks), gradient)
    assert blocks.graph.ops[part.start].name == BARRIER


def test_a_barrier_of_the_forward_pass_is_not_where_the_backward_pass_begins() -> None:
    blocks = blocks_of(lambda v, w, x: jnp.sum(layer(jax.lax.optimization_barrier(jnp.tanh(x @ v)), v, w) ** 2), 3)
    assert blocks.graph.ops[backward_start(blocks)].name == "stablehlo.dot_general"


def test_what_keeps_the_steps_of_an_unrolled_loop_apart_is_not_taken_for_the_barrier_of_a_recomputation() -> None:
    def loss(weights: Any, x: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0] ** 2)

    program = trace(jax.grad(loss, argnums=(0, 1)), (np.ones((3, 16, 16), np.float32), ARRAY), {}, (), "cpu")
    blocks = find_blocks(read_graph(program.module.bytecode))
    assert sum(op.name == STEP_BARRIER for op in blocks.graph.ops) == 6
    assert rematerialised_ranges(blocks) == ()
    entries = [entry for block in blocks.blocks for entry in block.entries]
    assert backward_start(blocks) == min(entry.op for entry in entries if entry.role == "gradient")
    assert [len(block.entries) for block in blocks.blocks] == [3, 3, 3]
