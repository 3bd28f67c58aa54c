"""The space of rivals: candidates of CFP's planner, and what plans of them communicate."""

import pytest

from alpa_cfp.analysis.contractions import Side
from alpa_cfp.costs import Rates, estimated_s
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp_bench.rivals.flexflow import in_soap
from alpa_cfp_bench.rivals.option import costs_of
from alpa_cfp_bench.rivals.space import Space, moving_problem, moving_rates, problem_of, with_times
from unit.alpa_cfp.training_steps import MESH, model_module, two_layer_candidates, two_layer_module

pytestmark = pytest.mark.slow


def two_layer_space() -> Space:
    return Space.of(AnalysedProgram(two_layer_module()), MESH)


def test_equal_blocks_keep_equal_candidates() -> None:
    space = Space.of(AnalysedProgram(model_module("gpt")), MESH).only(in_soap)
    assert len(set(space.kinds)) < len(space.kinds)
    for each in space.block_candidates:
        assert each.candidates is space.block_candidates[each.kind].candidates


def test_a_plan_has_the_strategies_of_its_choices() -> None:
    space = two_layer_space()
    plan = space.plan((1, 2), 3.0)
    first, second = two_layer_candidates()
    assert plan.strategies == (first.candidates[1].strategy, second.candidates[2].strategy)
    assert (plan.mesh, plan.cost) == (MESH, 3.0)


def test_a_byte_costs_one_and_nothing_else_does() -> None:
    space = two_layer_space()
    problem = moving_problem(space, moving_rates())
    for block, variable in zip(space.block_candidates, problem.variables, strict=True):
        for candidate, cost in zip(block.candidates, variable.time_s, strict=True):
            bytes_alone = Rates(latency_s=0.0, link_bytes_per_s=1.0)
            computing = estimated_s(candidate.work, bytes_alone) - cost
            assert computing == pytest.approx(
                candidate.work.flops / bytes_alone.flops_per_s + candidate.work.memory_bytes / bytes_alone.bytes_per_s
            )


def test_gradients_are_summed_once_whatever_the_number_of_micro_batches() -> None:
    space = two_layer_space()
    once, thrice = (moving_problem(space, moving_rates(), count) for count in (1, 3))
    factors = space.program.blocks.blocks[0].factors
    by_samples = next(
        number
        for number, candidate in enumerate(space.block_candidates[0].candidates)
        if [factor is not None and factors[factor].side for factor in candidate.strategy.factors] == [Side.LEFT]
    )
    ratio = thrice.variables[0].time_s[by_samples] / once.variables[0].time_s[by_samples]
    # Not three times; a fifth of it counts at least for each further micro-batch.
    assert ratio == pytest.approx(1.4)
    for before, after in zip(once.edges, thrice.edges, strict=True):
        assert after.time_s == pytest.approx(3 * before.time_s)


def test_without_profiles_costs_are_estimates_by_the_rates_of_some_cpu() -> None:
    space = two_layer_space()
    rates, communication = costs_of(MESH, None)
    assert (rates, communication) == (Rates(), None)
    problem = problem_of(space.costs(rates, communication, None))
    assert [each.choices for each in problem.variables] == [len(each.candidates) for each in space.block_candidates]
    for block, variable in zip(space.block_candidates, problem.variables, strict=True):
        assert variable.time_s == pytest.approx([estimated_s(each.work, rates) for each in block.candidates], rel=1e-3)


def test_more_time_is_added_to_each_choice() -> None:
    problem = moving_problem(two_layer_space(), moving_rates())
    more = [[float(number) for number in range(each.choices)] for each in problem.variables]
    plan = (2, 1)
    assert with_times(problem, more).time(plan) == problem.time(plan) + 3
