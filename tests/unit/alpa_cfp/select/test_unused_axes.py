"""Strategies that leave mesh axes unused are made where the best plan may have them, and nowhere else."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_cfp.candidates.block_candidates import BlockCandidates, CandidateCache, Strategies, find_block_candidates
from alpa_cfp.costs import Rates
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.search import SearchProblem, Solution, search
from alpa_cfp.select.baselines import baselines, needed_by_hand
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.search_problem import find_boundaries
from alpa_cfp.select.unused_axes import UsedAxes
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding, strategies_of
from alpa_cfp_bench.workloads.sizes import TINY
from unit.alpa_cfp.training_steps import model_module

LONG, CUBE = LogicalMesh((2, 4)), LogicalMesh((2, 2, 2))
# Where computing takes all the time, where starting a collective does, and as a mesh is by default.
SLOW_TO_COMPUTE = Rates(flops_per_s=1e6, bytes_per_s=1e6, latency_s=1e-9, link_bytes_per_s=1e15)
SLOW_TO_COMMUNICATE = Rates(latency_s=1.0)
RATES = {"slow to compute": SLOW_TO_COMPUTE, "slow to communicate": SLOW_TO_COMMUNICATE, "as usual": Rates()}


@cache
def program(name: str) -> AnalysedProgram:
    return AnalysedProgram(model_module(name, replace(TINY, layers=2 if name == "moe" else 1)))


# The candidates of each kind are made once for all tests.
CACHE: CandidateCache = {}


def problem(name: str, rates: Rates, candidates: Sequence[BlockCandidates], micro_batches: int = 1) -> SearchProblem:
    of = program(name)
    boundaries = find_boundaries(of.module, of.blocks, candidates)
    return PlanSearch(CandidateCosts(candidates, boundaries, rates, micro_batches=micro_batches)).problem


def best(name: str, rates: Rates, candidates: Sequence[BlockCandidates], micro_batches: int = 1) -> Solution:
    return search(problem(name, rates, candidates, micro_batches), None)


def find(name: str, mesh: LogicalMesh, strategies: Strategies | None = None) -> Sequence[BlockCandidates]:
    return find_block_candidates(program(name).subprograms, mesh, CACHE, strategies=strategies)


def made(
    name: str,
    rates: Rates,
    mesh: LogicalMesh = LONG,
    margin: float = 1.0,
    *,
    has_baselines: bool = False,
    micro_batches: int = 1,
    budget: int | None = None,
    is_over: bool = False,
    gap_s: float = 0.0,
) -> Sequence[BlockCandidates]:
    used = UsedAxes(
        mesh.shape,
        lambda block: strategies_of(block, mesh.shape),
        partial(find, name, mesh),
        partial(needed_by_hand, mesh) if has_baselines else lambda block, every, given: (),
        budget,
        lambda: is_over,
    )

    def plan(candidates: Sequence[BlockCandidates]) -> Solution:
        return replace(best(name, rates, candidates, micro_batches), gap_s=gap_s)

    return used.candidates(plan, margin)


def leaves_unused(strategy: BlockStrategy) -> bool:
    return None in strategy.factors


def splits_in_part(strategy: BlockStrategy) -> bool:
    return leaves_unused(strategy) and set(strategy.factors) != {None}


def count(candidates: Sequence[BlockCandidates]) -> int:
    return len({(each.kind, candidate.strategy) for each in candidates for candidate in each.candidates})


@pytest.mark.parametrize("micro_batches", [1, 8])
@pytest.mark.parametrize("rates", RATES)
@pytest.mark.parametrize(("name", "mesh"), [("mlp", LONG), ("gpt", LONG), ("conv", LONG), ("moe", LONG), ("mlp", CUBE)])
def test_the_best_plan_of_all_candidates_is_among_those_that_are_made(
    name: str, mesh: LogicalMesh, rates: str, micro_batches: int
) -> None:
    found = made(name, RATES[rates], mesh, margin=1.5, micro_batches=micro_batches)
    every = find(name, mesh)
    expected_s = best(name, RATES[rates], every, micro_batches).time_s
    assert best(name, RATES[rates], found, micro_batches).time_s == pytest.approx(expected_s)


@pytest.mark.parametrize("share", [0.6, 0.9, 1.5])
def test_with_a_memory_budget_that_the_best_plan_may_not_fit_into_all_are_made(share: float) -> None:
    every = find("gpt", LONG)
    budget = int(share * best("gpt", SLOW_TO_COMPUTE, every).memory.total)
    assert made("gpt", SLOW_TO_COMPUTE, budget=budget) == every


def test_a_memory_budget_that_the_best_plan_surely_fits_into_changes_nothing() -> None:
    budget = 4 * best("gpt", SLOW_TO_COMPUTE, find("gpt", LONG)).memory.total
    assert made("gpt", SLOW_TO_COMPUTE, budget=budget) == made("gpt", SLOW_TO_COMPUTE)


def test_where_a_search_meets_its_limit_all_are_made() -> None:
    assert made("gpt", SLOW_TO_COMPUTE, gap_s=1e9) == find("gpt", LONG)


def test_when_the_time_for_planning_is_over_no_more_are_made() -> None:
    found = made("gpt", Rates(), is_over=True)
    assert count(found) < count(made("gpt", Rates()))


@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_where_computing_takes_all_the_time_all_axes_are_used_or_none(name: str) -> None:
    for each in made(name, SLOW_TO_COMPUTE):
        every = find(name, LONG)[each.block].candidates
        assert not any(map(splits_in_part, (candidate.strategy for candidate in each.candidates)))
        assert any(splits_in_part(candidate.strategy) for candidate in every)


def test_where_communicating_takes_all_the_time_the_plan_that_replicates_everything_is_made() -> None:
    found = made("mlp", SLOW_TO_COMMUNICATE)
    plan = best("mlp", SLOW_TO_COMMUNICATE, found)
    chosen = [each.candidates[choice].strategy for each, choice in zip(found, plan.choices, strict=True)]
    assert all(set(strategy.factors) == {None} for strategy in chosen)


def test_fewer_are_made_the_better_estimates_are_known() -> None:
    counts = [count(made("gpt", Rates(), margin=margin)) for margin in (1.0, 4.0, math.inf)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] == count(find("gpt", LONG))


def power_of_ten(low: int, high: int) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


@given(
    name=st.sampled_from(["mlp", "gpt", "conv", "moe"]),
    rates=st.builds(
        Rates,
        flops_per_s=power_of_ten(6, 12),
        bytes_per_s=power_of_ten(6, 12),
        latency_s=power_of_ten(-8, -2),
        link_bytes_per_s=power_of_ten(6, 12),
    ),
)
@settings(max_examples=40, deadline=None)
def test_if_estimates_are_right_the_best_plan_is_never_missed_however_fast_a_mesh_is(name: str, rates: Rates) -> None:
    found, every = made(name, rates), find(name, LONG)
    assert best(name, rates, found).time_s == pytest.approx(best(name, rates, every).time_s, rel=1e-6)


@pytest.mark.parametrize(("name", "mesh"), [("mlp", LONG), ("gpt", LONG), ("conv", LONG), ("moe", LONG), ("mlp", CUBE)])
def test_a_stand_in_does_no_more_than_each_candidate_of_its_strategy_and_lies_as_it_does(
    name: str, mesh: LogicalMesh
) -> None:
    """Also than those whose state is split further (ZeRO), which share the update."""
    every, compared = find(name, mesh), 0

    def with_stand_ins(candidates: Sequence[BlockCandidates]) -> Solution:
        nonlocal compared
        for each in candidates:
            real = [one for one in every[each.block].candidates if one not in each.candidates]
            for one in real:
                base = replace(one.strategy, state_sharding=StateSharding.REPLICATED)
                (stand_in,) = (other for other in each.candidates if other.strategy == base)
                assert stand_in.work.flops <= one.work.flops * (1 + 1e-9)
                assert stand_in.work.memory_bytes <= one.work.memory_bytes * (1 + 1e-9)
                assert stand_in.work.collectives == ()
                if one.strategy == base:
                    assert (stand_in.inputs, stand_in.outputs) == (one.inputs, one.outputs)
                compared += 1
        return best(name, Rates(), candidates)

    UsedAxes(
        mesh.shape,
        lambda block: strategies_of(block, mesh.shape),
        partial(find, name, mesh),
        lambda block, every, given: (),
    ).candidates(with_stand_ins, 1.0)
    assert compared > 0


def test_candidates_of_a_kind_stay_in_the_order_of_its_strategies() -> None:
    every = find("gpt", LONG)
    for each in made("gpt", Rates()):
        kept = set(each.candidates)
        assert list(each.candidates) == [one for one in every[each.block].candidates if one in kept]


def test_a_block_that_nothing_can_split_along_an_axis_keeps_all_its_strategies() -> None:
    mesh = LogicalMesh((2, 4096))  # no dim has so many parts
    found = made("mlp", SLOW_TO_COMPUTE, mesh)
    for each in found:
        assert each.candidates == find("mlp", mesh)[each.block].candidates


@pytest.mark.parametrize("name", ["gpt", "moe"])
def test_plans_by_hand_are_those_of_all_candidates(name: str) -> None:
    """However dear it is to leave an axis unused, the plans that people write do so where they cannot use it."""
    of = program(name)

    def by_hand(candidates: Sequence[BlockCandidates]) -> dict[str, list[BlockStrategy]]:
        plans = baselines(of.blocks.blocks, candidates, problem(name, Rates(), candidates), LONG)
        return {
            plan: [each.candidates[choice].strategy for each, choice in zip(candidates, solution.choices, strict=True)]
            for plan, solution in plans.items()
            if "where it pays" not in plan  # the cheapest one of many
        }

    assert by_hand(made(name, Rates(), margin=1.5, has_baselines=True)) == by_hand(find(name, LONG))


def test_what_a_hand_written_plan_needs_is_added_only_where_nothing_else_can_be_taken() -> None:
    (block, *_) = program("mlp").blocks.blocks
    every = strategies_of(block, LONG.shape)
    assert needed_by_hand(LONG, block, every, every) == []

    def splits_samples(strategy: BlockStrategy) -> bool:
        sides = {None if factor is None else block.factors[factor].side.value for factor in strategy.factors}
        return sides == {"left"}

    others = [each for each in every if not splits_samples(each) and not leaves_unused(each)]
    assert any(splits_samples(each) for each in needed_by_hand(LONG, block, every, others))
