"""The parts of a forward pass are its layers, in order, up to the backward pass."""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp.analysis.backward import backward_start
from alpa_cfp.analysis.blocks import Blocks, find_blocks
from alpa_cfp.analysis.forward_parts import forward_parts
from alpa_cfp.analysis.reading import read_graph
from unit.alpa_cfp.spmd.helpers import lower


def loss(weights: list[Any], x: jax.Array) -> jax.Array:
    for up, down in weights:
        x = x + jnp.tanh(x @ up) @ down
    return (x**2).mean()


def blocks_of(layers: int, *, has_backward_pass: bool = True) -> Blocks:
    weights = [(np.ones((8, 32), np.float32), np.ones((32, 8), np.float32))] * layers
    function = jax.grad(loss) if has_backward_pass else loss
    leaves = [array for pair in weights for array in pair]

    def flat(x: jax.Array, *leaves: jax.Array) -> Any:
        return jax.tree.leaves(function(list(zip(leaves[::2], leaves[1::2], strict=True)), x))

    return find_blocks(read_graph(lower(flat, (np.ones((16, 8), np.float32), *leaves)).bytecode))


@pytest.mark.parametrize("layers", [1, 2, 5, 9])
def test_parts_are_in_order_and_cover_the_forward_pass(layers: int) -> None:
    blocks = blocks_of(layers)
    parts = forward_parts(blocks)
    assert parts[0].start == 0
    assert parts[-1].stop == backward_start(blocks)
    assert all(first.stop == second.start for first, second in pairwise(parts))


def test_a_part_is_a_layer_and_begins_where_least_is_handed_on() -> None:
    blocks = blocks_of(6)
    parts = forward_parts(blocks)
    products = [[op for op in part if blocks.graph.ops[op].name == "stablehlo.dot_general"] for part in parts]
    assert len(parts) == 6
    assert [len(each) for each in products] == [2] * 6


def test_a_program_without_a_backward_pass_has_no_parts() -> None:
    assert forward_parts(blocks_of(3, has_backward_pass=False)) == ()
