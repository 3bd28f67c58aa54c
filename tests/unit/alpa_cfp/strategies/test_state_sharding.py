"""State that several devices would hold copies of, split over them."""

import dataclasses
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.candidates.block_candidates import distinct, find_block_candidates
from alpa_cfp.extraction.subprograms import find_subprograms
from alpa_cfp.planner.plan_programs import with_plan
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding
from alpa_cfp.strategies.state_sharding import shard_further
from unit.alpa_cfp.spmd.helpers import MESH_2X4, all_shardings, split
from unit.alpa_cfp.training_steps import (
    MESH,
    WIDTH,
    model_module,
    two_layer_blocks,
    two_layer_candidates,
    two_layer_module,
)

SHAPE = (16, 32)


def data_parallel(state_sharding: StateSharding) -> HloModule:
    """The step with its samples split, and this state sharding."""
    blocks = two_layer_blocks()
    lefts = [next(i for i, f in enumerate(block.factors) if f.side is Side.LEFT) for block in blocks.blocks]
    return with_plan(two_layer_module(), blocks, MESH, [BlockStrategy((left,), state_sharding) for left in lefts])


def communication(module: HloModule) -> Counter[str]:
    assert module.partitioned is not None
    return Counter(each.kind for each in module.partitioned.collectives)


def state_bytes(module: HloModule) -> list[int]:
    """Of a device, for each weight and moment."""
    assert module.input_shardings is not None
    return [math.prod(sharding.local_shape((WIDTH, WIDTH))) * 4 for sharding in module.input_shardings[:4]]


def test_an_array_is_split_along_its_outermost_dim_that_can_be_divided() -> None:
    assert shard_further(split(MESH_2X4, "", ""), SHAPE) == split(MESH_2X4, "xy", "")
    assert shard_further(split(MESH_2X4, "", ""), (6, 16)) == split(MESH_2X4, "", "xy")


def test_axes_that_divide_no_dim_together_split_one_each() -> None:
    assert shard_further(split(MESH_2X4, "", ""), (4, 2)) == split(MESH_2X4, "y", "x")


def test_what_splits_an_array_already_stays() -> None:
    assert shard_further(split(MESH_2X4, "", "y"), SHAPE) == split(MESH_2X4, "x", "y")


def test_a_dim_that_cannot_be_divided_is_not_split() -> None:
    assert shard_further(split(MESH_2X4, "", ""), (5, 7)) == split(MESH_2X4, "", "")


@given(st.sampled_from(all_shardings(MESH_2X4, SHAPE)))
def test_shard_further_only_splits_further(sharding) -> None:
    result = shard_further(sharding, SHAPE)
    assert result.divides(SHAPE)
    assert all(new[: len(old)] == old for old, new in zip(sharding.dims, result.dims, strict=True))


def test_replicated_state_is_whole_on_each_device() -> None:
    assert state_bytes(data_parallel(StateSharding.REPLICATED)) == [WIDTH * WIDTH * 4] * 4


def test_split_moments_are_an_eighth_on_each_of_eight_devices() -> None:
    whole = WIDTH * WIDTH * 4
    assert state_bytes(data_parallel(StateSharding.ZERO2)) == [whole, whole, whole // 8, whole // 8]


def test_all_state_split_is_an_eighth_of_it_on_each_of_eight_devices() -> None:
    assert state_bytes(data_parallel(StateSharding.ZERO3)) == [WIDTH * WIDTH * 4 // 8] * 4


@pytest.mark.parametrize("state_sharding", [StateSharding.ZERO2, StateSharding.ZERO3])
def test_split_state_replaces_the_sum_of_gradients_by_a_reduce_scatter_and_an_all_gather_of_weights(
    state_sharding: StateSharding,
) -> None:
    assert set(communication(data_parallel(state_sharding))) == {"reduce-scatter", "all-gather"}


def test_a_manual_sharding_of_state_stays() -> None:
    module = dataclasses.replace(two_layer_module())
    replicated = split(MESH, "", "").to_proto().SerializeToString()
    undefined = split(MESH, "", "").to_proto()
    undefined.type = undefined.Type.MANUAL
    module.input_protos = (replicated, *(undefined.SerializeToString() for _ in range(4)))
    blocks = two_layer_blocks()
    planned = with_plan(module, blocks, MESH, [BlockStrategy((None,), StateSharding.ZERO3) for _ in blocks.blocks])
    assert planned.input_shardings is not None
    assert planned.input_shardings[0].is_replicated


def test_each_state_sharding_of_a_replicated_block_is_a_candidate() -> None:
    for block in two_layer_candidates():
        found = {
            candidate.strategy.state_sharding for candidate in block.candidates if candidate.strategy.factors == (None,)
        }
        assert found == set(StateSharding)


def test_state_that_is_split_entirely_cannot_be_split_further() -> None:
    blocks = two_layer_blocks()
    for block in two_layer_candidates():
        right = next(i for i, f in enumerate(blocks.blocks[block.block].factors) if f.side is Side.RIGHT)
        found = {
            candidate.strategy.state_sharding
            for candidate in block.candidates
            if candidate.strategy.factors == (right,)
        }
        assert found == {StateSharding.REPLICATED}


@pytest.mark.parametrize(("model", "mesh"), [("mlp", (2, 4)), ("gpt", (8,)), ("conv", (8,))])
def test_the_shardings_of_a_candidate_with_split_state_are_those_of_its_program(
    model: str, mesh: tuple[int, ...]
) -> None:
    module = model_module(model)
    block_candidates = find_block_candidates(
        find_subprograms(module, find_blocks(read_graph(module.bytecode))), LogicalMesh(mesh)
    )
    found = [
        each for each in distinct(block_candidates) if each.strategy.state_sharding is not StateSharding.REPLICATED
    ]
    assert found
    for candidate in found:
        program = candidate.module.partitioned
        assert program is not None
        assert candidate.inputs == program.input_shardings
        # Around a batch norm, whose averages both passes make, propagation may decide otherwise.
        assert model == "conv" or candidate.outputs == program.output_shardings
