"""On problems small enough to list every plan, the search gives what the list gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.search import MemoryBudgetError, NoPlanError, SearchProblem, search
from unit.alpa_cfp.search.problems import SHAPES, budgets, plans, problems

pytestmark = pytest.mark.slow


def found(problem: SearchProblem, budget: int | None) -> list[tuple[float, int]]:
    """Time and memory of the plan that is found; nothing if there is none."""
    try:
        plan = search(problem, budget)
    except (MemoryBudgetError, NoPlanError):
        return []
    assert plan == problem.solution(plan.choices)
    return [(plan.time_s, plan.memory.total)]


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_the_best_plan_within_any_budget_is_that_of_the_list(shape: str, data: st.DataObject) -> None:
    problem = data.draw(problems(shape))
    for budget in data.draw(st.lists(st.sampled_from(budgets(problem) or [0]), min_size=1, max_size=3, unique=True)):
        fitting = [(s.time_s, s.memory.total) for s in plans(problem) if s.memory.total <= budget]
        assert found(problem, budget) == fitting[:1]


@given(problem=problems())
def test_without_a_budget_the_best_plan_is_the_fastest(problem: SearchProblem) -> None:
    assert [time for time, _ in found(problem, None)] == [s.time_s for s in plans(problem)][:1]


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
        assert search(problem, None).gap_s == 0
        return
    for budget in (None, 0, 10**9):
        with pytest.raises(NoPlanError):
            search(problem, budget)
