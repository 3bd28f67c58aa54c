"""The plans that people write by hand are found among the candidates."""

import random
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.candidates.block_candidates import find_block_candidates
from alpa_cfp.costs import Rates, estimated_s
from alpa_cfp.extraction.subprograms import find_subprograms
from alpa_cfp.search import Edge, Solution
from alpa_cfp.select.baselines import baselines
from alpa_cfp.select.search_problem import find_boundaries
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding
from alpa_cfp_bench.workloads.sizes import TINY, Size
from unit.alpa_cfp.spmd.helpers import lower
from unit.alpa_cfp.training_steps import (
    MESH,
    estimated_problem,
    model_module,
    two_layer_blocks,
    two_layer_boundaries,
    two_layer_candidates,
)

pytestmark = pytest.mark.slow

RATES = Rates()


def found() -> dict[str, Solution]:
    block_candidates = two_layer_candidates()
    times = [[estimated_s(candidate.work, RATES) for candidate in block.candidates] for block in block_candidates]
    problem = estimated_problem(block_candidates, two_layer_boundaries(), times, RATES)
    return baselines(two_layer_blocks().blocks, block_candidates, problem, MESH)


def strategies(plan: Solution) -> list[BlockStrategy]:
    return [
        block.candidates[choice].strategy for block, choice in zip(two_layer_candidates(), plan.choices, strict=True)
    ]


def sides(plan: Solution) -> list[list[Side | None]]:
    blocks = two_layer_blocks().blocks
    return [
        [None if factor is None else block.factors[factor].side for factor in strategy.factors]
        for block, strategy in zip(blocks, strategies(plan), strict=True)
    ]


def test_data_parallelism_splits_the_samples_of_each_block() -> None:
    assert sides(found()["data parallel"]) == [[Side.LEFT], [Side.LEFT]]


def test_zero_splits_the_samples_and_the_state() -> None:
    plans = found()
    for name, kept in (("ZeRO-2", StateSharding.ZERO2), ("ZeRO-3", StateSharding.ZERO3)):
        assert sides(plans[name]) == [[Side.LEFT], [Side.LEFT]]
        assert {strategy.state_sharding for strategy in strategies(plans[name])} == {kept}


def test_megatron_splits_the_first_layer_by_columns_and_the_second_by_rows() -> None:
    assert sides(found()["Megatron"]) == [[Side.RIGHT], [Side.REDUCTION]]


def test_each_plan_has_the_cost_of_the_problem_that_it_is_for() -> None:
    assert all(plan.time_s > 0 and plan.memory.total > 0 for plan in found().values())


def plans_of(
    model: str, mesh: LogicalMesh, size: Size = TINY
) -> tuple[dict[str, Solution], dict[str, list[list[Side | None]]]]:
    """A model's plain plans with estimated costs, and for each of their blocks and axes what is split."""
    module = model_module(model, size)
    blocks = find_blocks(read_graph(module.bytecode))
    block_candidates = find_block_candidates(find_subprograms(module, blocks), mesh)
    times = [[estimated_s(candidate.work, RATES) for candidate in block.candidates] for block in block_candidates]
    plans = baselines(
        blocks.blocks,
        block_candidates,
        estimated_problem(block_candidates, find_boundaries(module, blocks, block_candidates), times, RATES),
        mesh,
    )
    split = {
        name: [
            [
                None if factor is None else block.factors[factor].side
                for factor in own.candidates[choice].strategy.factors
            ]
            for block, own, choice in zip(blocks.blocks, block_candidates, plan.choices, strict=True)
        ]
        for name, plan in plans.items()
    }
    return plans, split


def test_tensor_parallelism_leaves_the_router_of_a_mixture_of_experts_alone() -> None:
    wide = replace(TINY, hidden=128)  # a router of 128 x 8 beside layers of 128 x 128 and more
    _, split = plans_of("moe", LogicalMesh((2, 4)), wide)
    for axis in (0, 1):
        sides = split[f"Megatron along axis {axis}, data parallel"]
        assert all(of_block[1 - axis] in (Side.LEFT, Side.BATCH) for of_block in sides)
        assert [None, Side.LEFT][:: 1 if axis == 0 else -1] in sides
        assert sum(of_block[axis] is None for of_block in sides) < len(sides) / 4


def test_tensor_parallelism_where_it_pays_costs_less_than_everywhere() -> None:
    plans, _ = plans_of("moe", LogicalMesh((2, 4)))
    paying = [name for name in plans if name.endswith(", where it pays")]
    assert paying
    assert all(plans[name].time_s <= plans[name.removesuffix(", where it pays")].time_s for name in paying)


def test_an_axis_of_one_device_does_not_count() -> None:
    _, split = plans_of("mlp", LogicalMesh((1, 8)))
    assert all(of_block == [None, Side.LEFT] for of_block in split["data parallel"])


def test_data_parallelism_splits_all_blocks_by_the_same_samples_whatever_they_take_alone() -> None:
    """Positions of a sequence are samples of a block too, and profiles are noisy: some blocks may seem faster so."""
    module = model_module("gpt")
    blocks = find_blocks(read_graph(module.bytecode))
    block_candidates = find_block_candidates(find_subprograms(module, blocks), MESH)
    drawn = random.Random(0)
    times = [[drawn.uniform(1.0, 1.1) for _ in block.candidates] for block in block_candidates]
    problem = estimated_problem(block_candidates, find_boundaries(module, blocks, block_candidates), times, RATES)
    plan = baselines(blocks.blocks, block_candidates, problem, MESH)["data parallel"]
    alone = sum(variable.time_s[choice] for variable, choice in zip(problem.variables, plan.choices, strict=True))
    assert problem.time(plan.choices) - alone < 1e-9


def test_data_parallelism_replicates_the_lookup_of_positions_that_all_samples_share() -> None:
    def step(words: Any, positions: Any, w: Any, ids: Any) -> Any:
        def loss(words: Any, positions: Any, w: Any) -> Any:
            x = words[ids] + positions[jnp.arange(16)]
            attended = jnp.einsum("bpq,bqd->bpd", jax.nn.softmax(jnp.einsum("bpd,bqd->bpq", x, x)), x)
            return jnp.mean((attended @ w) ** 2)

        grads = jax.grad(loss, argnums=(0, 1, 2))(words, positions, w)
        return tuple(each - 0.1 * grad for each, grad in zip((words, positions, w), grads, strict=True))

    arguments = [np.ones(shape, np.float32) for shape in ((64, 32), (16, 32), (32, 32))]
    module = lower(step, (*arguments, np.zeros((8, 16), np.int32)))
    blocks = find_blocks(read_graph(module.bytecode))
    block_candidates = find_block_candidates(find_subprograms(module, blocks), MESH)
    times = [[estimated_s(candidate.work, RATES) for candidate in block.candidates] for block in block_candidates]
    problem = estimated_problem(block_candidates, find_boundaries(module, blocks, block_candidates), times, RATES)
    plan = baselines(blocks.blocks, block_candidates, problem, MESH)["data parallel"]
    factors = [
        each.candidates[choice].strategy.factors for each, choice in zip(block_candidates, plan.choices, strict=True)
    ]
    shards = [
        None if own is None else block.factors[own].max_shards
        for block, (own,) in zip(blocks.blocks, factors, strict=True)
    ]
    assert shards == [8, None, *[8] * (len(shards) - 2)]


def test_what_neighbours_save_is_not_counted_as_much_as_what_is_moved() -> None:
    module = model_module("gpt")
    blocks = find_blocks(read_graph(module.bytecode))
    block_candidates = find_block_candidates(find_subprograms(module, blocks), MESH)
    boundaries = find_boundaries(module, blocks, block_candidates)
    times = [[1.0] * len(block.candidates) for block in block_candidates]
    expected = baselines(
        blocks.blocks, block_candidates, estimated_problem(block_candidates, boundaries, times, RATES), MESH
    )
    choices = expected["data parallel"].choices
    for block, choice in zip(times, choices, strict=True):
        block[:] = [1.0 if number == choice else 1.0001 for number in range(len(block))]
    problem = estimated_problem(block_candidates, boundaries, times, RATES)
    edges = []
    for edge, (first, second) in zip(problem.edges, problem.ends, strict=True):
        saving = edge.time_s.copy()
        saving[np.arange(len(saving)) != choices[first]] = -1e-6
        saving[:, np.arange(saving.shape[1]) != choices[second]] = -1e-6
        edges.append(Edge(edge.first, edge.second, saving))
    found = baselines(blocks.blocks, block_candidates, replace(problem, edges=tuple(edges)), MESH)
    assert found["data parallel"].choices == choices
