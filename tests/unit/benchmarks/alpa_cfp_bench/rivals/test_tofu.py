"""Tofu's halvings: each step moves the fewest bytes, equal blocks have one choice, and the choices compose."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.analysis.contractions import Side
from alpa_cfp.costs import Rates
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.planner.plan_programs import with_plan
from alpa_cfp.search import Edge, SearchProblem, Variable
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding, strategies_of
from alpa_cfp_bench.rivals.space import RivalPlan, Space, moving_problem, moving_rates, problem_of
from alpa_cfp_bench.rivals.tofu import all_is_split, any_split, bisected, coalesced, continued, expanded, halvings
from unit.alpa_cfp.spmd.helpers import lower
from unit.alpa_cfp.training_steps import two_layer_module

pytestmark = pytest.mark.slow


def two_products(samples: int, width: int) -> HloModule:
    """A step of two layers with square weights of this width, which are donated."""

    def step(v: Any, w: Any, x: Any) -> Any:
        gradients = jax.grad(lambda v, w: jnp.sum((jnp.tanh(x @ v) @ w) ** 2), (0, 1))(v, w)
        return v - 0.1 * gradients[0], w - 0.1 * gradients[1]

    weight = np.ones((width, width), np.float32)
    return lower(step, (weight, weight, np.ones((samples, width), np.float32)), donated=(True, True, False))


def tofu(module: HloModule, *shape: int) -> tuple[AnalysedProgram, RivalPlan]:
    program = AnalysedProgram(module)
    mesh = LogicalMesh(shape)
    return program, bisected(program, mesh, lambda space: moving_problem(space, moving_rates()), all_is_split)


def sides(program: AnalysedProgram, plan: RivalPlan) -> list[list[Side | None]]:
    return [
        [None if factor is None else block.factors[factor].side for factor in strategy.factors]
        for block, strategy in zip(program.blocks.blocks, plan.strategies, strict=True)
    ]


@pytest.mark.parametrize(
    ("shape", "parts"),
    [((8,), (2, 2, 2)), ((2, 4), (2, 2, 2)), ((1, 8), (2, 2, 2)), ((6, 2), (2, 3, 2)), ((1, 1), ()), ((5,), (5,))],
)
def test_an_axis_is_divided_by_its_prime_factors(shape: tuple[int, ...], parts: tuple[int, ...]) -> None:
    assert halvings(shape) == parts


def test_of_large_weights_and_a_small_batch_the_weights_are_split_by_columns_and_then_by_rows() -> None:
    # By samples, two weights of 64 x 64 floats are gathered and their gradients scattered. Else the result, of 8 x 64
    # floats, is summed: half of it crosses a link to be added up, and half to be handed back.
    program, plan = tofu(two_products(8, 64), 2)
    assert sides(program, plan) == [[Side.RIGHT], [Side.REDUCTION]]
    assert plan.cost == pytest.approx(8 * 64 * 4)


@pytest.mark.parametrize("shape", [(8,), (2, 4)])
def test_of_large_weights_and_a_small_batch_no_halving_splits_samples(shape: tuple[int, ...]) -> None:
    program, plan = tofu(two_products(8, 64), *shape)
    assert {side for block in sides(program, plan) for side in block} == {Side.RIGHT, Side.REDUCTION}
    # Each device has an eighth of each weight, and there is nothing of them left to split.
    assert {strategy.state_sharding for strategy in plan.strategies} == {StateSharding.REPLICATED}


@pytest.mark.parametrize("shape", [(8,), (2, 4)])
def test_of_small_weights_and_a_large_batch_the_samples_are_split(shape: tuple[int, ...]) -> None:
    program, plan = tofu(two_products(1024, 8), *shape)
    assert sides(program, plan) == [[Side.LEFT] * 3] * 2
    # All tensors are split: the weights, too, where they are kept.
    assert {strategy.state_sharding for strategy in plan.strategies} == {StateSharding.ZERO3}


def test_the_bytes_of_a_halving_are_those_by_hand() -> None:
    # By samples between two halves: half of each weight is gathered, and half of each gradient is scattered.
    _, plan = tofu(two_products(1024, 8), 2)
    assert plan.cost == pytest.approx(2 * (8 * 8 * 4 / 2 + 8 * 8 * 4 / 2))


@pytest.mark.parametrize("shape", [(8,), (1, 8), (2, 4), (2, 2)])
def test_the_choices_compose_to_strategies_with_which_the_program_can_be_partitioned(shape: tuple[int, ...]) -> None:
    program, plan = tofu(two_layer_module(), *shape)
    assert plan.mesh.num_devices == math.prod(shape)
    for block, strategy in zip(program.blocks.blocks, plan.strategies, strict=True):
        plain = dataclasses.replace(strategy, state_sharding=StateSharding.REPLICATED)
        assert plain in strategies_of(block, plan.mesh.shape)
        assert None not in strategy.factors
    planned = with_plan(program.module, program.blocks, plan.mesh, plan.strategies).partitioned
    assert planned is not None
    assert planned.collectives


def test_a_step_keeps_what_the_steps_before_it_chose() -> None:
    _, whole = tofu(two_layer_module(), 8)
    for steps, devices in ((1, 2), (2, 4)):
        _, part = tofu(two_layer_module(), devices)
        assert [each.factors[:steps] for each in whole.strategies] == [each.factors for each in part.strategies]


def test_a_block_that_no_halving_can_split_further_stays_as_it_is() -> None:
    # Three halvings along three factors are as many runs of axes as candidates have, and 2 samples are one halving.
    module, mesh = two_products(2, 8), LogicalMesh((2, 2, 2))
    program = AnalysedProgram(module)
    sides = [[factor.side for factor in block.factors] for block in program.blocks.blocks]
    order = (Side.RIGHT, Side.REDUCTION, Side.LEFT)
    before = RivalPlan(mesh, tuple(BlockStrategy(tuple(map(own.index, order))) for own in sides), 0.0)
    space = continued(program, LogicalMesh((2, 2, 2, 2)), before)
    for each, strategy in zip(space.block_candidates, before.strategies, strict=True):
        assert {candidate.strategy.factors for candidate in each.candidates} == {(*strategy.factors, None)}


def test_on_one_device_nothing_is_split() -> None:
    program, plan = tofu(two_layer_module(), 1, 1)
    assert [strategy.factors for strategy in plan.strategies] == [()] * len(program.blocks.blocks)
    assert with_plan(program.module, program.blocks, plan.mesh, plan.strategies).partitioned is not None


def test_by_seconds_what_does_not_pay_is_not_split() -> None:
    # Of hardly anything to compute, communicating takes longer than computing all of it on each device.
    program = AnalysedProgram(two_products(8, 8))

    rates = Rates(flops_per_s=1e12, bytes_per_s=1e12, latency_s=0.0, link_bytes_per_s=1.0)

    def estimated(space: Space) -> SearchProblem:
        return problem_of(space.costs(rates, None, None))

    plan = bisected(program, LogicalMesh((2,)), estimated, any_split)
    assert {strategy.factors for strategy in plan.strategies} == {(None,)}


@st.composite
def repeated_problems(draw: st.DrawFn) -> tuple[SearchProblem, list[int], list[int]]:
    """A problem whose variables of a kind have equally many choices, their kinds, and a choice for each kind."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = [0, *draw(st.lists(st.integers(0, 3), max_size=6))]
    kinds = [kinds.index(kind) for kind in kinds]  # as of blocks, the number of the first one
    choices = {kind: int(random.integers(1, 4)) for kind in kinds}
    variables = [Variable(f"v{i}", random.integers(0, 9, choices[kind])) for i, kind in enumerate(kinds)]
    pairs = [(i, j) for i in range(len(kinds)) for j in range(len(kinds)) if i != j and random.random() < 0.5]
    edges = [Edge(f"v{i}", f"v{j}", random.integers(0, 9, (choices[kinds[i]], choices[kinds[j]]))) for i, j in pairs]
    chosen = [int(random.integers(choices[kind])) for kind in dict.fromkeys(kinds)]
    return SearchProblem(tuple(variables), tuple(edges)), kinds, chosen


@given(repeated_problems())
def test_a_plan_of_equal_choices_costs_the_same_with_one_variable_for_equal_blocks(
    drawn: tuple[SearchProblem, list[int], list[int]],
) -> None:
    problem, kinds, chosen = drawn
    assert coalesced(problem, kinds).time(chosen) == problem.time(expanded(chosen, kinds))
