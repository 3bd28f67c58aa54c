"""FlexFlow's Markov chain keeps the best plan that it meets, meets the best of small problems, and is repeatable."""

import math
import random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from alpa_cfp.analysis.contractions import Side
from alpa_cfp.costs import Rates
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.search import Edge, NoPlanError, SearchProblem, Variable
from alpa_cfp.spmd.partition.local_ops import HANDLERS
from alpa_cfp.strategies.block_strategy import StateSharding
from alpa_cfp_bench.rivals.flexflow import Chain, best_of_chains, in_soap, random_plans, simulated_problem
from alpa_cfp_bench.rivals.space import Space
from unit.alpa_cfp.search.problems import plans, problems
from unit.alpa_cfp.training_steps import MESH, two_layer_module, uncovered_module


@pytest.fixture(autouse=True)
def uncovered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves Fourier transforms to XLA's partitioner."""
    monkeypatch.delitem(HANDLERS, "stablehlo.fft")


pytestmark = pytest.mark.slow

SEEDS = st.integers(0, 2**32 - 1)


def drawn_starts(problem: SearchProblem, seed: int, count: int = 2) -> list[tuple[int, ...]]:
    drawn = random.Random(seed)
    found = plans(problem)
    assume(found)
    return [drawn.choice(found).choices for _ in range(count)]


@given(problems(), SEEDS, st.integers(0, 200))
def test_a_plan_is_never_worse_than_one_that_a_chain_starts_from(problem: SearchProblem, seed: int, most: int) -> None:
    starts = drawn_starts(problem, seed)
    found = best_of_chains(problem, starts, seed, Chain(most=most))
    assert found.time_s <= min(map(problem.time, starts))
    assert found.time_s == problem.time(found.choices) < math.inf


@given(problems(), SEEDS)
def test_a_chain_of_enough_proposals_meets_the_best_plan_of_a_small_problem(problem: SearchProblem, seed: int) -> None:
    starts = drawn_starts(problem, seed)
    found = best_of_chains(problem, starts, seed, Chain((5.0,), least=5000))
    assert found.time_s == plans(problem)[0].time_s


@given(problems(), SEEDS)
def test_the_same_seed_gives_the_same_plan(problem: SearchProblem, seed: int) -> None:
    starts = drawn_starts(problem, seed)
    once, again = (best_of_chains(problem, starts, seed, Chain(most=50)) for _ in range(2))
    assert once == again
    assert random_plans(problem, 3, seed) == random_plans(problem, 3, seed)


@given(problems(), SEEDS)
def test_a_random_plan_has_no_excluded_choice(problem: SearchProblem, seed: int) -> None:
    assume(plans(problem))
    drawn = random_plans(problem, 3, seed)
    assert len(drawn) == 3
    assert all(math.isfinite(problem.time(plan)) for plan in drawn)


@given(problems(), SEEDS)
def test_a_proposal_changes_one_variable(problem: SearchProblem, seed: int) -> None:
    (start,) = drawn_starts(problem, seed, count=1)
    found = best_of_chains(problem, [start], seed, Chain((1.0,), most=1))
    assert sum(a != b for a, b in zip(start, found.choices, strict=True)) <= 1


def test_a_worse_plan_is_accepted_less_often_the_larger_beta_is() -> None:
    # From the first plan, which costs 2, the last one, which costs 1, is reached through plans that cost 22 alone.
    table = np.array([[1.0, 21.0], [21.0, 0.0]])
    barrier = SearchProblem((Variable("a", [0.5, 0.5]), Variable("b", [0.5, 0.5])), (Edge("a", "b", table),))
    reached = [
        sum(best_of_chains(barrier, [(0, 0)], seed, Chain((beta,), 40, 40)).choices == (1, 1) for seed in range(20))
        for beta in (0.1, 0.4, 100.0)
    ]
    assert reached[0] > reached[1] > reached[2] == 0


def test_a_variable_without_a_choice_is_an_error_that_names_it() -> None:
    problem = SearchProblem((Variable("block 0", [math.inf, math.inf]),))
    with pytest.raises(NoPlanError, match="block 0"):
        best_of_chains(problem, [(0,)], 0)


def test_the_space_of_flexflow_has_neither_sums_nor_split_state() -> None:
    space = Space.of(AnalysedProgram(two_layer_module()), MESH)
    own = space.only(in_soap)
    for whole, each in zip(space.block_candidates, own.block_candidates, strict=True):
        factors = space.program.blocks.blocks[each.block].factors
        sides = {
            None if factor is None else factors[factor].side
            for candidate in each.candidates
            for factor in candidate.strategy.factors
        }
        assert sides == {None, Side.LEFT, Side.RIGHT}
        assert {candidate.strategy.state_sharding for candidate in each.candidates} == {StateSharding.REPLICATED}
        assert len(each.candidates) < len(whole.candidates)


def test_a_simulated_plan_takes_what_its_blocks_compute_and_its_bytes_by_the_bandwidth() -> None:
    space, rates = Space.of(AnalysedProgram(two_layer_module()), MESH).only(in_soap), Rates()
    costs = space.costs(rates, None, None)
    twice = Rates(latency_s=7.0, link_bytes_per_s=2 * rates.link_bytes_per_s)
    slow, fast = (simulated_problem(space, costs, each) for each in (rates, twice))
    for block, numbers in enumerate(costs.numbers):
        computing = np.array([costs.means.computing_s[number] for number in numbers])
        moved = slow.variables[block].time_s - computing
        assert moved.max() > 0
        # No latency; and half the time where the link is twice as fast.
        assert fast.variables[block].time_s - computing == pytest.approx(moved / 2)
    for before, after in zip(slow.edges, fast.edges, strict=True):
        assert after.time_s == pytest.approx(before.time_s / 2)


def test_what_a_program_of_xla_communicates_counts_once() -> None:
    space, rates = Space.of(AnalysedProgram(uncovered_module()), MESH), Rates()
    costs = space.costs(rates, None, None)
    problem = simulated_problem(space, costs, rates)
    own = [
        (float(time_s), float(costs.means.computing_s[place]))
        for variable, block, places in zip(problem.variables, space.block_candidates, costs.numbers, strict=True)
        for time_s, candidate, place in zip(variable.time_s, block.candidates, places, strict=True)
        if candidate.predicted and candidate.work.collectives
    ]
    assert own
    assert all(time_s == pytest.approx(computing_s) for time_s, computing_s in own)
