"""The proof obligation of ParallelBlocks: a split along a live factor communicates nowhere among a block's members.

Shardy's own propagation and explicit reshards are the judges, on whole models and on random programs.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_cfp.analysis.blocks import BlockFactor, Blocks, Output, ParallelBlock, find_blocks
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.analysis.reading import read_graph
from unit.alpa_cfp.analysis.cutting import collectives
from unit.alpa_cfp.analysis.programs import (
    GATE_ARGUMENTS,
    POSITION_ARGUMENTS,
    bytecode_of,
    bytecode_of_text,
    gates,
    gradients,
    model_blocks,
    model_bytecode,
    with_positions,
)
from unit.alpa_cfp.analysis.random_programs import OPERATIONS, Instruction, lower

pytestmark = pytest.mark.slow


def without_partial_sum(block: ParallelBlock) -> list[BlockFactor]:
    return [factor for factor in block.usable_factors if factor.side is not Side.REDUCTION]


def communicating(
    bytecode: bytes, blocks: Blocks, *, axes: int = 1, loops: tuple[int, ...] = ()
) -> list[tuple[int, list[Side], list[str]]]:
    """The blocks, what is split and the collectives that contradict the promise, of all choices for so many axes."""
    contradictions: list[tuple[int, list[Side], list[str]]] = []
    for block in blocks.blocks:
        for factors in itertools.combinations_with_replacement(without_partial_sum(block), axes):
            parts = [factor.max_shards if axes == 1 else 2 for factor in factors]
            if all(factor.max_shards % 2**axes == 0 for factor in factors) or axes == 1:
                found = collectives(bytecode, blocks, block, list(zip(factors, parts, strict=True)), loops)
                if found:
                    contradictions.append((block.index, [factor.side for factor in factors], found))
    return contradictions


def whole(blocks: Blocks, block: ParallelBlock) -> ParallelBlock:
    """The block with its glue among its members."""
    graph, ops = blocks.graph, tuple(sorted((*block.members, *block.glue)))
    inside = set(ops)
    outputs = [
        Output(result, ())
        for op in ops
        for result in graph.ops[op].results
        if result in graph.results or any(user not in inside for user in graph.values[result].users)
    ]
    return replace(block, members=ops, glue=(), outputs=tuple(outputs))


@pytest.mark.parametrize("name", ["mlp", "gpt", "bert", "moe", "conv", "unet", "llama", "llama, remat"])
def test_no_block_of_a_model_communicates_when_it_is_split_along_a_live_factor(name: str):
    blocks = model_blocks(name)
    assert sum(len(without_partial_sum(block)) for block in blocks.blocks) >= 2 * len(blocks.blocks)
    assert communicating(model_bytecode(name), blocks) == []


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(with_positions, POSITION_ARGUMENTS), (gates, GATE_ARGUMENTS)],
    ids=["positions", "gates"],
)
def test_no_block_communicates_to_which_something_of_its_neighbours_was_moved(
    function: Callable[..., jax.Array], arguments: Sequence[jax.ShapeDtypeStruct]
):
    bytecode = bytecode_of(gradients(function, 3), *arguments)
    blocks = find_blocks(read_graph(bytecode))
    assert communicating(bytecode, blocks) == []


@pytest.mark.parametrize("name", ["llama, scan", "llama, scan, remat"])
def test_no_block_of_a_loops_body_communicates_when_it_is_split_along_a_live_factor(name: str):
    (loop,) = model_blocks(name).loops
    assert len(loop.blocks.blocks) == 4
    assert communicating(model_bytecode(name), loop.blocks, loops=loop.iteration.loops) == []


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_no_block_of_a_model_communicates_on_a_mesh_of_two_axes(name: str):
    assert communicating(model_bytecode(name), model_blocks(name), axes=2) == []


def test_a_dead_factor_does_communicate():
    blocks = model_blocks("gpt")
    attention = blocks.blocks[2]
    (position,) = [factor for factor in attention.factors if not factor.usable]
    assert collectives(model_bytecode("gpt"), blocks, attention, [(position, 2)])


def test_a_reduction_factor_sums_and_does_nothing_else():
    blocks = model_blocks("gpt")
    attention = blocks.blocks[2]
    (hidden,) = [factor for factor in attention.usable_factors if factor.side is Side.REDUCTION]
    assert collectives(model_bytecode("gpt"), blocks, attention, [(hidden, 2)]) == ["sdy.all_reduce"]


@pytest.mark.parametrize("name", ["mlp", "gpt", "moe", "conv", "llama", "llama, remat"])
def test_a_whole_block_with_gradients_and_updates_sums_and_does_nothing_else(name: str):
    blocks = model_blocks(name)
    for block in blocks.blocks:
        for factor in block.usable_factors:
            found = collectives(model_bytecode(name), blocks, whole(blocks, block), [(factor, 2)])
            assert set(found) <= {"sdy.all_reduce"}, (block.index, factor.side)


def test_data_parallelism_sums_each_gradient_once_and_tensor_parallelism_the_gradient_of_the_input():
    blocks = model_blocks("gpt")
    sample, _, column, _ = blocks.blocks[4].usable_factors
    block = whole(blocks, blocks.blocks[4])
    # The gradients of the dot's weight and bias.
    assert collectives(model_bytecode("gpt"), blocks, block, [(sample, 2)]) == ["sdy.all_reduce"] * 2
    assert collectives(model_bytecode("gpt"), blocks, block, [(column, 2)]) == ["sdy.all_reduce"]


INSTRUCTIONS = st.lists(
    st.tuples(st.integers(0, len(OPERATIONS) - 1), st.integers(0, 11), st.integers(0, 11)), min_size=2, max_size=8
)


@settings(max_examples=40, deadline=None)
@given(instructions=INSTRUCTIONS, gradients=st.booleans())
def test_no_block_of_any_program_communicates_when_it_is_split_along_a_live_factor(
    instructions: list[Instruction], gradients: bool
):
    bytecode = bytecode_of_text(lower(instructions, gradients=gradients))
    blocks = find_blocks(read_graph(bytecode))
    assert all(
        (block is None) == constant_derived
        for block, constant_derived in zip(blocks.block_of_op, blocks.graph.constant_derived, strict=True)
    )
    assert communicating(bytecode, blocks) == []
