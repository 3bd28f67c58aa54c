"""A problem's tables are checked when it is made, and it says what a plan costs."""

import pickle

import numpy as np
import pytest
from hypothesis import given

from alpa_cfp.search import (
    Edge,
    InvalidProblemError,
    MemoryBudgetError,
    MemoryUse,
    SearchProblem,
    Variable,
    search,
)
from unit.alpa_cfp.search.problems import plans, problems


def two() -> SearchProblem:
    return SearchProblem(
        (Variable("a", [1, 2], [10, 20], [1, 2], [5, 9]), Variable("b", [3.0], [7], [4], [6])),
        (Edge("b", "a", [[0.5, 0.25]]),),
    )


def test_memory_sums_state_and_saved_and_takes_the_largest_transient() -> None:
    assert two().memory((0, 0)) == MemoryUse(state=17, saved=5, transient=6)
    assert two().memory((1, 0)) == MemoryUse(state=27, saved=6, transient=9)
    assert two().memory((0, 0)).total == 28


def test_time_sums_variables_and_edges_and_is_infinite_where_a_choice_is_excluded() -> None:
    assert two().time((0, 0)) == 4.5
    assert two().time((1, 0)) == 5.25
    assert SearchProblem((Variable("a", [np.inf]),)).time((0,)) == np.inf


@given(problem=problems())
def test_the_leanest_plan_is_the_smallest_of_all(problem: SearchProblem) -> None:
    times = [np.where(np.isfinite(v.time_s), v.time_s, 0.0) for v in problem.variables]
    allowed = SearchProblem(
        tuple(
            Variable(v.name, time, v.state_bytes, v.saved_bytes, v.transient_bytes)
            for v, time in zip(problem.variables, times, strict=True)
        )
    )
    assert allowed.memory(allowed.leanest()).total == min(s.memory.total for s in plans(allowed))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Variable("a", [np.nan]), "variable 'a': time_s holds NaN"),
        (lambda: Variable("a", [-np.inf]), "variable 'a': time_s holds -inf"),
        (lambda: Variable("a", []), "variable 'a': time_s has shape"),
        (lambda: Variable("a", [1, 2], [1, 2, 3]), r"variable 'a': state_bytes has shape \(3,\); \(2,\) is needed"),
        (lambda: Variable("a", [1], [0.5]), "state_bytes holds NaN, inf or a fraction"),
        (lambda: Variable("a", [1], 0, [-1]), "saved_bytes holds a negative"),
        (lambda: Edge("a", "b", [1]), r"edge 'a' - 'b': time_s has shape \(1,\)"),
        (lambda: Edge("a", "b", [[np.inf]]), "holds NaN or inf; only a choice of a variable can be excluded"),
        (lambda: Variable("a", [1], 0, 0, [-1]), "transient_bytes holds a negative"),
        (lambda: SearchProblem((Variable("a", [1]), Variable("a", [1]))), "two variables are called 'a'"),
        (lambda: SearchProblem((Variable("a", [1]),), (Edge("a", "c", [[1]]),)), "no variable is called 'c'"),
        (lambda: SearchProblem((Variable("a", [1]),), (Edge("a", "a", [[1]]),)), "joins a variable to itself"),
        (
            lambda: SearchProblem((Variable("a", [1]), Variable("b", [1])), (Edge("a", "b", [[1, 2]]),)),
            r"has shape \(1, 2\); the choices are \(1, 1\)",
        ),
        (lambda: SearchProblem((Variable("a", [1], [2.0**53]),)), "cannot be counted exactly"),
        (lambda: two().time((0,)), "1 choices for 2 variables"),
        (lambda: two().memory((0, 1)), "variable 'b' has 1 choices, not one numbered 1"),
        (lambda: search(two(), -1), "budget_bytes=-1"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(make, says: str) -> None:
    with pytest.raises(InvalidProblemError, match=says):
        make()


def test_a_plan_of_exactly_the_budget_fits_and_of_a_byte_more_does_not() -> None:
    assert search(two(), 28).choices == (0, 0)
    with pytest.raises(MemoryBudgetError):
        search(two(), 27)


def test_tables_cannot_be_changed_after_the_problem_was_checked() -> None:
    with pytest.raises(ValueError, match="read-only"):
        two().variables[0].time_s[0] = np.nan


def test_a_problem_without_variables_has_the_empty_plan() -> None:
    assert search(SearchProblem(()), 0).choices == ()


@pytest.mark.parametrize(
    ("kind", "table", "knob"),
    [(0, "state", "more devices"), (1, "saved", "micro-batches"), (2, "transient", "micro-batches")],
)
def test_the_error_names_what_takes_the_memory_and_what_helps(kind: int, table: str, knob: str) -> None:
    large = [1000 if index == kind else 1 for index in range(3)]
    problem = SearchProblem(
        (Variable("small", [1], [1], [1], [1]), Variable("large", [1], *([size] for size in large)))
    )
    with pytest.raises(MemoryBudgetError, match=f"{table} dominates, most of it in large.*{knob}") as raised:
        search(problem, 5)
    assert raised.value.dominated_by == table
    assert f"{raised.value.least_bytes:,}" in str(raised.value)


def test_the_error_survives_the_way_between_processes() -> None:
    with pytest.raises(MemoryBudgetError) as raised:
        search(two(), 5)
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (str(copy), copy.least_bytes, copy.budget_bytes) == (str(raised.value), 28, 5)
