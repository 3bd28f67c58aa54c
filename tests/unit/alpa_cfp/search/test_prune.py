"""Choices that are left out before the search are needed by none of the plans that are wanted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.search import Edge, SearchProblem, Variable
from alpa_cfp.search.prune import prune
from unit.alpa_cfp.search.problems import SHAPES, budgets, plans, problems


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_the_best_plans_within_any_budget_cost_the_same_without_what_is_left_out(
    shape: str, data: st.DataObject
) -> None:
    problem = data.draw(problems(shape))
    best = data.draw(st.integers(1, 4))
    pruned = prune(problem, best, memory=True)
    for budget in budgets(problem):
        before, after = (
            [(s.time_s, s.memory.total) for s in plans(which) if s.memory.total <= budget][:best]
            for which in (problem, pruned.problem)
        )
        assert after == before


@given(problem=problems(), best=st.integers(1, 4))
def test_without_a_budget_the_fastest_plans_take_as_long_without_what_is_left_out(
    problem: SearchProblem, best: int
) -> None:
    pruned = prune(problem, best, memory=False)
    assert [s.time_s for s in plans(pruned.problem)][:best] == [s.time_s for s in plans(problem)][:best]


@given(problem=problems(), best=st.integers(1, 3))
def test_a_plan_of_the_smaller_problem_costs_the_same_in_the_given_one(problem: SearchProblem, best: int) -> None:
    pruned = prune(problem, best, memory=True)
    for plan in plans(pruned.problem)[:5]:
        given_plan = problem.solution(pruned.given(plan.choices))
        assert (given_plan.time_s, given_plan.memory) == (plan.time_s, plan.memory)


@pytest.mark.parametrize("best", [1, 2, 3, 4])
def test_of_equal_choices_the_first_few_stay_as_many_as_plans_are_wanted(best: int) -> None:
    problem = SearchProblem((Variable("a", [1] * 4, [5] * 4),))
    assert prune(problem, best, memory=True).kept == (tuple(range(best)),)


def test_a_choice_that_is_slower_and_smaller_stays_unless_memory_does_not_count() -> None:
    problem = SearchProblem((Variable("a", [1, 2], [5, 4]),))
    assert prune(problem, 1, memory=True).kept == ((0, 1),)
    assert prune(problem, 1, memory=False).kept == ((0,),)


def test_a_slower_choice_stays_if_one_choice_of_a_neighbour_makes_it_worth_while() -> None:
    first, second = Variable("a", [1, 2]), Variable("b", [1, 0])
    cheap, dear = [[0, 0.5], [0, 0]], [[0, 3], [0, 0]]
    assert prune(SearchProblem((first, second), (Edge("a", "b", cheap),)), 1, memory=True).kept[0] == (0,)
    assert prune(SearchProblem((first, second), (Edge("a", "b", dear),)), 1, memory=True).kept[0] == (0, 1)


def test_a_larger_transient_of_an_edge_does_not_matter_below_that_of_the_other_choice_itself() -> None:
    def kept(own: int) -> tuple[int, ...]:
        first = Variable("a", [1, 2], 0, 0, [0, own])
        edge = Edge("a", "b", np.zeros((2, 1)), [[5], [0]])
        return prune(SearchProblem((first, Variable("b", [0])), (edge,)), 1, memory=True).kept[0]

    assert kept(own=5) == (0,)
    assert kept(own=4) == (0, 1)


def test_a_choice_that_every_neighbour_excludes_goes_and_so_does_what_only_it_needed() -> None:
    edges = (Edge("a", "b", [[np.inf, np.inf], [1, 2]]), Edge("b", "c", [[1, 2], [1, 0]]))
    variables = (Variable("a", [0, 5]), Variable("b", [0, 0]), Variable("c", [0, 0]))
    assert prune(SearchProblem(variables, edges), 1, memory=True).kept == ((1,), (0, 1), (0, 1))
    cheaper = (edges[0], Edge("b", "c", [[1, 2], [1, 2]]))
    assert prune(SearchProblem(variables, cheaper), 1, memory=True).kept == ((1,), (0,), (0,))
