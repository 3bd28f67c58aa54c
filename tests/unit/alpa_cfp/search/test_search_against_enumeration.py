"""On problems small enough to list every plan, the search gives what the list gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.search import MemoryBudgetError, NoPlanError, SearchProblem, search
from unit.alpa_cfp.search.problems import SHAPES, budgets, plans, problems


def found(problem: SearchProblem, budget: int | None, best: int = 1) -> list[tuple[float, int]]:
    try:
        return [(s.time_s, s.memory.total) for s in search(problem, budget, best=best)]
    except (MemoryBudgetError, NoPlanError):
        return []


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_the_best_plans_within_any_budget_are_those_of_the_list(shape: str, data: st.DataObject) -> None:
    problem = data.draw(problems(shape))
    best = data.draw(st.sampled_from([1, 1, 2, 5]))
    for budget in data.draw(st.lists(st.sampled_from(budgets(problem) or [0]), min_size=1, max_size=3, unique=True)):
        fitting = [(s.time_s, s.memory.total) for s in plans(problem) if s.memory.total <= budget]
        assert found(problem, budget, best) == fitting[:best]


@given(problem=problems(), best=st.integers(1, 6))
def test_without_a_budget_the_best_plans_are_the_fastest(problem: SearchProblem, best: int) -> None:
    assert [time for time, _ in found(problem, None, best)] == [s.time_s for s in plans(problem)][:best]


@given(problem=problems(), best=st.integers(2, 6))
def test_the_best_plans_are_distinct_and_cost_what_the_problem_says(problem: SearchProblem, best: int) -> None:
    listed = plans(problem)
    if not listed:
        return
    solutions = search(problem, max(s.memory.total for s in listed), best=best) if listed[0].memory.total >= 0 else ()
    assert len({s.choices for s in solutions}) == len(solutions)
    assert [problem.solution(s.choices) for s in solutions] == list(solutions)


@given(problem=problems())
def test_where_nothing_fits_the_error_gives_the_least_memory_of_any_plan(problem: SearchProblem) -> None:
    least = min((s.memory.total for s in plans(problem)), default=0)
    if least <= 0:
        return
    with pytest.raises(MemoryBudgetError) as raised:
        search(problem, least - 1)
    assert (raised.value.least_bytes, raised.value.budget_bytes) == (least, least - 1)


@given(problem=problems())
def test_a_problem_of_which_every_plan_is_excluded_says_so_whatever_the_budget(problem: SearchProblem) -> None:
    if plans(problem):
        assert search(problem, None)
        return
    for budget in (None, 0, 10**9):
        with pytest.raises(NoPlanError):
            search(problem, budget)
