"""The plans that people write by hand are found among the candidates."""

from alpa_cfp.analysis.contractions import Side
from alpa_cfp.baselines import baselines
from alpa_cfp.costs import Rates, estimated_s
from alpa_cfp.problem import make_problem
from alpa_cfp.search import Solution
from alpa_cfp.strategies import BlockStrategy, Kept
from unit.alpa_cfp.steps import two_layer_blocks, two_layer_boundaries, two_layer_units

RATES = Rates()


def found() -> dict[str, Solution]:
    units = two_layer_units()
    times = [[estimated_s(candidate.work, RATES) for candidate in unit.candidates] for unit in units]
    problem = make_problem(units, two_layer_boundaries(RATES), times)
    return baselines(two_layer_blocks().blocks, units, problem)


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
