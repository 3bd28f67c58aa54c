"""State that several devices would hold copies of, split over them."""

import dataclasses
import math
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from alpa_cfp.analysis.blocks import Blocks, find_blocks
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.analysis.updates import Update, find_updates
from alpa_cfp.candidates.block_candidates import distinct, find_block_candidates
from alpa_cfp.costs import Work
from alpa_cfp.extraction.subprograms import find_subprograms
from alpa_cfp.planner.plan_programs import with_plan
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import Collective
from alpa_cfp.spmd.propagation import donation_pairs
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding
from alpa_cfp.strategies.state_sharding import find_state_shardings, shard_further, work_with_sharded_state
from unit.alpa_cfp.spmd.helpers import MESH_2X4, all_shardings, lower, run, split
from unit.alpa_cfp.training_steps import (
    MESH,
    WIDTH,
    model_module,
    two_layer_blocks,
    two_layer_candidates,
    two_layer_module,
)

pytestmark = pytest.mark.slow

SHAPE = (16, 32)
WHOLE_ZERO2 = BlockStrategy((None,), StateSharding.ZERO2)


def data_parallel(state_sharding: StateSharding) -> HloModule:
    """The step with its samples split, and this state sharding."""
    blocks = two_layer_blocks()
    lefts = [next(i for i, f in enumerate(block.factors) if f.side is Side.LEFT) for block in blocks.blocks]
    return with_plan(two_layer_module(), blocks, MESH, [BlockStrategy((left,), state_sharding) for left in lefts])


@dataclasses.dataclass(frozen=True)
class Matrices:
    """A step whose two weights, one of three times the size of the other, are whole on each device."""

    blocks: Blocks
    updates: tuple[Update, ...]
    whole: tuple[ArraySharding, ...]
    size_bytes: int


def two_matrices() -> Matrices:
    def step(v: Any, w: Any, m: Any, n: Any, x: Any) -> Any:
        grads = jax.grad(lambda pair: jnp.mean(jnp.tanh(x @ pair[0]) @ pair[1]))((v, w))
        m, n = 0.9 * m + grads[0], 0.9 * n + grads[1]
        return v - m, w - n, m, n

    v, w, x = (np.ones(shape, np.float32) for shape in ((64, 64), (64, 192), (64, 64)))
    module = lower(step, (v, w, v, w, x), donated=(True,) * 4 + (False,))
    blocks = find_blocks(read_graph(module.bytecode))
    updates = tuple(find_updates(blocks.graph, donation_pairs(module)))
    return Matrices(blocks, updates, (split(MESH, "", ""),) * 5, v.nbytes + w.nbytes)


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


@pytest.mark.parametrize("sums", [(1,), (0.75, 0.25), (0.25, 0.75)])
def test_gradients_that_are_summed_in_several_all_reduces_are_all_scattered(sums: tuple[float, ...]) -> None:
    program = two_matrices()
    state = find_state_shardings(
        program.blocks, program.updates, [WHOLE_ZERO2] * len(program.blocks.blocks), program.whole
    )
    work = Work(0.0, 1e9, tuple(Collective("all-reduce", int(part * program.size_bytes), 8) for part in sums))
    after = work_with_sharded_state(program.blocks.graph, program.updates, program.whole, state, work)
    sizes = Counter[str]()
    for each in after.collectives:
        sizes[each.kind] += each.size_bytes
    assert sizes == {"reduce-scatter": program.size_bytes, "all-gather": program.size_bytes // 8}


def test_weights_that_a_branch_uses_are_gathered_before_it() -> None:
    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.mean(lax.cond(x[0, 0] > 0, lambda: jnp.sin(w), lambda: w) * (x @ w))

        return w - jax.grad(loss)(w)

    w = x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    module = lower(step, (w, x), donated=(True, False))
    blocks = find_blocks(read_graph(module.bytecode))
    planned = with_plan(module, blocks, MESH, [BlockStrategy((None,), StateSharding.ZERO3)] * len(blocks.blocks))
    assert state_bytes(planned)[0] == w.nbytes // 8
    assert planned.partitioned is not None
    (result,) = run(module, planned.partitioned, (w, x))
    np.testing.assert_allclose(result, step(w, x), rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize(("elements", "parts"), [(100_000, 1), (100_008, 8)])
def test_a_small_vector_stays_whole(elements: int, parts: int) -> None:
    def step(v: Any, b: Any, x: Any) -> Any:
        v_grad, b_grad = jax.grad(lambda pair: jnp.mean(jnp.tanh(x @ pair[0] + pair[1])))((v, b))
        return v - v_grad, b - b_grad

    shapes = ((8, elements), (elements,), (8, 8))
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    text = jax.jit(step).trace(*arguments).lower(lowering_platforms=("cpu",)).as_text()
    module = HloModule.from_stablehlo("step", text, (True, True, False))
    blocks = find_blocks(read_graph(module.bytecode))
    updates = tuple(find_updates(blocks.graph, donation_pairs(module)))
    zero3 = [BlockStrategy((None,), StateSharding.ZERO3)] * len(blocks.blocks)
    found = find_state_shardings(blocks, updates, zero3, (split(MESH, "", ""), split(MESH, ""), split(MESH, "", "")))
    sizes = {number: math.prod(sharding.local_shape(shapes[number])) for number, sharding in found.parameters.items()}
    assert sizes == {0: elements} | ({} if parts == 1 else {1: elements // parts})


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
