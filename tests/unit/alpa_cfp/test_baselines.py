"""The plans that people write by hand are found among the candidates."""

import random

from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.baselines import baselines
from alpa_cfp.candidates import find_units
from alpa_cfp.costs import Rates, estimated_s
from alpa_cfp.problem import find_boundaries, make_problem
from alpa_cfp.search import Solution
from alpa_cfp.strategies import BlockStrategy, Kept
from alpa_on_jax.xla_extension.sharding import LogicalMesh
from unit.alpa_cfp.steps import MESH, model_module, two_layer_blocks, two_layer_boundaries, two_layer_units

RATES = Rates()


def found() -> dict[str, Solution]:
    units = two_layer_units()
    times = [[estimated_s(candidate.work, RATES) for candidate in unit.candidates] for unit in units]
    problem = make_problem(units, two_layer_boundaries(), times, RATES)
    return baselines(two_layer_blocks().blocks, units, problem, MESH)


def strategies(plan: Solution) -> list[BlockStrategy]:
    return [unit.candidates[choice].strategy for unit, choice in zip(two_layer_units(), plan.choices, strict=True)]


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
    for name, kept in (("ZeRO-2", Kept.MOMENTS_SPLIT), ("ZeRO-3", Kept.ALL_SPLIT)):
        assert sides(plans[name]) == [[Side.LEFT], [Side.LEFT]]
        assert {strategy.kept for strategy in strategies(plans[name])} == {kept}


def test_megatron_splits_the_first_layer_by_columns_and_the_second_by_rows() -> None:
    assert sides(found()["Megatron"]) == [[Side.RIGHT], [Side.REDUCTION]]


def test_each_plan_has_the_cost_of_the_problem_that_it_is_for() -> None:
    assert all(plan.time_s > 0 and plan.memory.total > 0 for plan in found().values())


def test_an_axis_of_one_device_does_not_count() -> None:
    mesh = LogicalMesh((1, 8))
    module = model_module("mlp")
    blocks = find_blocks(read_graph(module.bytecode))
    units = find_units(module, blocks, mesh)
    times = [[estimated_s(candidate.work, RATES) for candidate in unit.candidates] for unit in units]
    problem = make_problem(units, find_boundaries(module, blocks, units), times, RATES)
    plan = baselines(blocks.blocks, units, problem, mesh)["data parallel"]
    for block, unit, choice in zip(blocks.blocks, units, plan.choices, strict=True):
        first, second = unit.candidates[choice].strategy.factors
        assert first is None
        assert second is not None
        assert block.factors[second].side is Side.LEFT


def test_data_parallelism_splits_all_blocks_by_the_same_samples_whatever_they_take_alone() -> None:
    """Positions of a sequence are samples of a block too, and profiles are noisy: some blocks may seem faster so."""
    module = model_module("gpt")
    blocks = find_blocks(read_graph(module.bytecode))
    units = find_units(module, blocks, MESH)
    drawn = random.Random(0)
    times = [[drawn.uniform(1.0, 1.1) for _ in unit.candidates] for unit in units]
    problem = make_problem(units, find_boundaries(module, blocks, units), times, RATES)
    plan = baselines(blocks.blocks, units, problem, MESH)["data parallel"]
    alone = sum(variable.time_s[choice] for variable, choice in zip(problem.variables, plan.choices, strict=True))
    assert problem.time(plan.choices) - alone < 1e-9
