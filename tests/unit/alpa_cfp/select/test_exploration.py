"""Plans that could be better than those that have run are found, and how much they could be better."""

from functools import cache

import pytest

from alpa_cfp.costs import Rates
from alpa_cfp.select.candidate_costs import CandidateCosts, Choices
from alpa_cfp.select.exploration import prospects
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.strategies.block_strategy import StateSharding
from unit.alpa_cfp.training_steps import data_parallel, two_layer_boundaries, two_layer_candidates


def search() -> PlanSearch:
    return PlanSearch(CandidateCosts(two_layer_candidates(), two_layer_boundaries(), Rates()))


def tried(*plans: Choices) -> PlanSearch:
    """A search that knows of plans which took as long as it predicts."""
    searched = search()
    for plan in plans:
        searched.observe(plan, searched.predicted(plan).time_s)
    return searched


@cache
def slowest() -> Choices:
    """The plan of the slowest candidate of each block."""
    problem = search().problem
    return tuple(int(variable.time_s.argmax()) for variable in problem.variables)


def test_of_a_plan_that_is_far_from_the_best_others_are_expected_to_be_much_faster() -> None:
    found = prospects(tried(slowest()), [slowest()], None, 8, least_gain=0.01)
    assert found.plans
    assert found.gain > 0.05


def test_plans_that_have_run_are_not_proposed_again() -> None:
    first = prospects(tried(slowest()), [slowest()], None, 8, least_gain=0.01)
    known = [slowest(), *first.plans]
    assert not set(prospects(tried(*known), known, None, 8, least_gain=0.01).plans) & set(known)


def test_the_more_plans_have_run_the_less_there_is_to_gain() -> None:
    known, gains = [search().best(1, None)[0].choices], []
    searched = tried(*known)
    for _ in range(6):
        found = prospects(searched, known, None, 16, least_gain=0.01)
        gains.append(found.gain)
        for choices in found.plans[:4]:
            searched.observe(choices, searched.predicted(choices).time_s)
            known.append(choices)
    assert gains[-1] < 0.5 * gains[0]


def test_the_same_measurements_give_the_same_plans() -> None:
    first, second = (prospects(tried(slowest()), [slowest()], None, 8, least_gain=0.01) for _ in range(2))
    assert first == second


def test_a_given_plan_that_the_search_would_not_find_is_proposed_if_it_could_be_the_fastest() -> None:
    best = search().best(1, None)[0].choices
    slow = tried(slowest())
    assert best in prospects(slow, [slowest()], None, 8, [best], least_gain=0.01).plans
    fast = tried(best)
    assert slowest() not in prospects(fast, [best], None, 8, [slowest()], least_gain=0.01).plans


def test_plans_that_differ_from_the_fastest_one_in_a_kind_of_block_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    best = search().best(1, None)[0].choices
    searched = tried(best)
    monkeypatch.setattr(searched, "cheapest_with", lambda known, budget: best)
    found = prospects(searched, [best], None, 8, least_gain=0.0).plans
    assert found
    changed = [[block for block, own in enumerate(plan) if own != best[block]] for plan in found]
    kinds = [{searched.costs.block_candidates[block].kind for block in blocks} for blocks in changed]
    assert all(len(each) == 1 for each in kinds)


def test_plans_of_one_state_sharding_are_compared_where_the_fastest_one_is_a_mixture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mixture = data_parallel(StateSharding.REPLICATED, StateSharding.ZERO2)
    searched = tried(mixture)
    monkeypatch.setattr(searched, "cheapest_with", lambda known, budget: mixture)
    found = prospects(searched, [mixture], None, 100, least_gain=0.0).plans
    assert {data_parallel(each, each) for each in StateSharding} <= set(found)


def test_plans_that_differ_in_a_kind_of_block_and_do_not_fit_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    best = search().best(1, None)[0]
    searched = tried(best.choices)
    monkeypatch.setattr(searched, "cheapest_with", lambda known, budget: best.choices)
    budget = best.memory.total
    for choices in prospects(searched, [best.choices], budget, 8, least_gain=0.0).plans:
        assert searched.problem.solution(choices).memory.total <= budget


def looking(monkeypatch: pytest.MonkeyPatch, *, slower: float) -> tuple[PlanSearch, list[Choices]]:
    """A search that knows of the slowest plan, and the plans whose programs it looks at: each takes so many times as
    long as its parts.
    """
    searched, looked_at = tried(slowest()), list[Choices]()
    own = searched.time_with
    monkeypatch.setattr(searched, "is_seen", lambda choices: choices in looked_at)
    monkeypatch.setattr(searched, "look_at", looked_at.append)
    monkeypatch.setattr(
        searched, "time_with", lambda plan, known: own(plan, known) * (slower if plan in looked_at else 1.0)
    )
    return searched, looked_at


def test_few_programs_are_looked_at_where_each_turns_out_to_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    searched, looked_at = looking(monkeypatch, slower=100.0)
    assert not prospects(searched, [slowest()], None, 2, least_gain=0.01).plans
    assert len(looked_at) == 4


def test_plans_that_were_looked_at_are_chosen_though_no_more_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    searched, looked_at = looking(monkeypatch, slower=3.0)
    found = prospects(searched, [slowest()], None, 2, least_gain=0.01).plans
    assert len(looked_at) == 4
    assert len(found) == 2
    assert set(found) <= set(looked_at)
