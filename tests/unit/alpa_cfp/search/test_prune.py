"""Choices that are left out before the search are not needed by the best plan."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.search import ClassTable, Edge, SearchProblem, Variable
from alpa_cfp.search.limits import Deadline
from alpa_cfp.search.prune import Pruned, prune
from unit.alpa_cfp.search.problems import SHAPES, budgets, plans, problems

pytestmark = pytest.mark.slow


def pruned(problem: SearchProblem, *, memory: bool = True) -> Pruned:
    return prune(problem, Deadline(), memory=memory)


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_the_best_plan_within_any_budget_costs_the_same_without_what_is_left_out(
    shape: str, data: st.DataObject
) -> None:
    problem = data.draw(problems(shape))
    if not plans(problem):
        return
    smaller = pruned(problem).problem
    for budget in budgets(problem):
        before, after = (
            [(s.time_s, s.memory.total) for s in plans(which) if s.memory.total <= budget][:1]
            for which in (problem, smaller)
        )
        assert after == before


@given(problem=problems())
def test_without_a_budget_the_fastest_plan_takes_as_long_without_what_is_left_out(problem: SearchProblem) -> None:
    if plans(problem):
        assert plans(pruned(problem, memory=False).problem)[0].time_s == plans(problem)[0].time_s


@given(problem=problems())
def test_a_plan_of_the_smaller_problem_costs_the_same_in_the_given_one(problem: SearchProblem) -> None:
    if not plans(problem):
        return
    found = pruned(problem)
    for plan in plans(found.problem)[:5]:
        given_plan = problem.solution(found.given(plan.choices))
        assert (given_plan.time_s, given_plan.memory) == (plan.time_s, plan.memory)


def test_of_equal_choices_the_first_stays() -> None:
    assert pruned(SearchProblem((Variable("a", [1] * 4, [5] * 4),))).kept == ((0,),)


def test_excluded_choices_go_and_after_the_deadline_nothing_else_does() -> None:
    problem = SearchProblem((Variable("a", [np.inf, 1, 1]), Variable("b", [1, np.inf])))
    assert pruned(problem).kept == ((1,), (0,))
    assert prune(problem, Deadline(-1.0), memory=True).kept == ((1, 2), (0,))


def test_a_choice_that_is_slower_and_smaller_stays_unless_memory_does_not_count() -> None:
    problem = SearchProblem((Variable("a", [1, 2], [5, 4]),))
    assert pruned(problem).kept == ((0, 1),)
    assert pruned(problem, memory=False).kept == ((0,),)


def test_a_slower_choice_stays_if_one_choice_of_a_neighbour_makes_it_worth_while() -> None:
    first, second = Variable("a", [1, 2]), Variable("b", [1, 0])
    cheap, dear = [[0, 0.5], [0, 0]], [[0, 3], [0, 0]]
    assert pruned(SearchProblem((first, second), (Edge("a", "b", cheap),))).kept[0] == (0,)
    assert pruned(SearchProblem((first, second), (Edge("a", "b", dear),))).kept[0] == (0, 1)


def test_what_goes_in_one_round_makes_choices_of_a_neighbour_equal() -> None:
    variables = (Variable("a", [np.inf, 5]), Variable("b", [0, 0]))
    edges = (Edge("a", "b", [[3, 0], [1, 2]]),)
    assert pruned(SearchProblem(variables, edges)).kept == ((1,), (0,))


def by_class(table: list[list[float]], rows: list[int], columns: list[int]) -> ClassTable:
    return ClassTable(np.array(table, np.float64), np.array(rows), np.array(columns))


def test_of_choices_that_cost_the_same_beside_all_others_the_best_stay_also_after_the_deadline() -> None:
    variables = (Variable("a", [3, 1, 2, 5], [1, 9, 5, 5]), Variable("b", [0, 0]))
    edges = (Edge("a", "b", by_class([[0, 7], [7, 0]], [0, 0, 0, 1], [0, 1])),)
    problem = SearchProblem(variables, edges)
    assert prune(problem, Deadline(-1.0), memory=False).kept == ((1, 3), (0, 1))
    assert prune(problem, Deadline(-1.0), memory=True).kept == ((0, 1, 2, 3), (0, 1))


@given(st.data())
def test_a_table_by_classes_is_the_same_problem_as_that_of_all_pairs(data: st.DataObject) -> None:
    numbers = st.integers(0, 5)
    rows, columns = (data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=6)) for _ in range(2))
    table = [[float(data.draw(numbers)) for _ in range(3)] for _ in range(3)]
    more = {(data.draw(st.sampled_from(range(len(rows)))), data.draw(st.sampled_from(range(len(columns))))): 2.5}
    classes = by_class(table, rows, columns).with_more(more)
    times = [[table[i][j] + more.get((a, b), 0.0) for b, j in enumerate(columns)] for a, i in enumerate(rows)]
    np.testing.assert_array_equal(Edge("a", "b", classes).time_s, times)
    a, b = (
        Variable(name, *([float(data.draw(numbers)) for _ in of] for _ in range(3)))
        for name, of in (("a", rows), ("b", columns))
    )
    by_classes, whole = (SearchProblem((a, b), (Edge("a", "b", each),)) for each in (classes, times))
    smaller = pruned(by_classes).problem
    for budget in budgets(whole):
        before, after = (
            [(s.time_s, s.memory.total) for s in plans(which) if s.memory.total <= budget][:1]
            for which in (whole, smaller)
        )
        assert after == before
    assert plans(pruned(by_classes, memory=False).problem)[0].time_s == plans(whole)[0].time_s
