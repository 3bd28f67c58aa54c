"""A search without the memory that it would need gives good plans and a true bound all the same."""

import itertools
import logging
import math
import pickle
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.search import (
    Edge,
    InvalidProblemError,
    MemoryBudgetError,
    NoPlanError,
    SearchProblem,
    Variable,
    search,
)
from alpa_cfp.search.approximate import begin
from alpa_cfp.search.incumbent import Incumbent
from alpa_cfp.search.limits import Deadline
from alpa_cfp.search.prune import prune
from unit.alpa_cfp.search.problems import SHAPES, budgets, plans, problems, random_problem

pytestmark = pytest.mark.slow

UNLIMITED = 2**60


def greedy_s(problem: SearchProblem, budget: int | None) -> float:
    """The time of the best plan that is there from the start."""
    pruned = prune(problem, Deadline(), memory=budget is not None)
    known = Incumbent(problem, pruned, math.inf if budget is None else budget)
    begin(known, Deadline())
    return known.time_s


def dense(count: int, choices: int, joined: int, seed: int = 0) -> SearchProblem:
    """A chain with `joined` more edges at random, of random times and bytes."""
    rng = np.random.default_rng(seed)
    variables = [Variable(f"v{i}", rng.random(choices), *rng.integers(1, 99, (3, choices))) for i in range(count)]
    pairs = [(i, i + 1) for i in range(count - 1)]
    pairs += [tuple(sorted(rng.choice(count, 2, replace=False).tolist())) for _ in range(joined)]
    edges = [Edge(f"v{i}", f"v{j}", rng.random((choices, choices))) for i, j in pairs]
    return SearchProblem(tuple(variables), tuple(edges))


def all_read(count: int, choices: int, read: int) -> SearchProblem:
    """A chain whose variables are all joined to its first `read` ones, too: blocks that all read some values."""
    rng = np.random.default_rng(1)
    variables = [Variable(f"v{i}", rng.random(choices), *rng.integers(1, 99, (3, choices))) for i in range(count)]
    pairs = [(i, i + 1) for i in range(count - 1)]
    pairs += [(hub, i) for hub in range(read) for i in range(hub + 2, count)]
    edges = [Edge(f"v{i}", f"v{j}", rng.random((choices, choices))) for i, j in pairs]
    return SearchProblem(tuple(variables), tuple(edges))


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_without_memory_for_tables_the_gap_is_true_and_the_plan_fits(shape: str, data: st.DataObject) -> None:
    problem = data.draw(problems(shape))
    budget = data.draw(st.sampled_from([None, *budgets(problem)]))
    fitting = [s for s in plans(problem) if budget is None or s.memory.total <= budget]
    least_bytes = None
    try:
        found = search(problem, budget, memory_limit_bytes=0)
    except NoPlanError:
        assert not plans(problem)
    except MemoryBudgetError as nothing:
        least_bytes = nothing.least_bytes
    else:
        assert found == problem.solution(found.choices) or found.gap_s > 0
        assert budget is None or found.memory.total <= budget
        assert found.time_s - found.gap_s <= fitting[0].time_s + 1e-9
        assert fitting[0].time_s <= found.time_s <= greedy_s(problem, budget)
    if least_bytes is not None:
        assert not fitting
        assert least_bytes == min(s.memory.total for s in plans(problem))


@given(problem=problems(), data=st.data())
def test_a_limit_of_memory_that_is_not_met_changes_nothing(problem: SearchProblem, data: st.DataObject) -> None:
    budget = data.draw(st.sampled_from([None, *budgets(problem)]))
    fits = any(budget is None or s.memory.total <= budget for s in plans(problem))
    if fits:
        assert search(problem, budget) == search(problem, budget, memory_limit_bytes=UNLIMITED)


@pytest.mark.parametrize("share", [None, 1.2, 2.0])
def test_a_random_graph_of_200_variables_with_60_choices_has_a_plan_and_a_bound(share: float | None) -> None:
    problem = dense(200, 60, 400)
    least = sum(int((v.state_bytes + v.saved_bytes).min()) for v in problem.variables)
    budget = None if share is None else int(share * least) + 99
    began = time.perf_counter()
    found = search(problem, budget, time_limit_s=2.0)
    assert time.perf_counter() - began < 20.0  # no step of it takes long, on any machine
    assert budget is None or found.memory.total <= budget
    assert found.time_s <= greedy_s(problem, budget)
    assert 0 < found.gap_s < found.time_s


@pytest.mark.parametrize("read", [1, 2])
def test_500_blocks_that_all_read_the_same_values_have_a_plan_and_a_bound(read: int) -> None:
    began = time.perf_counter()
    found = search(all_read(500, 20, read), None, time_limit_s=2.0, memory_limit_bytes=2**26)
    assert time.perf_counter() - began < 20.0
    assert math.isfinite(found.gap_s)


def test_more_neighbours_than_an_array_has_dims_are_no_error() -> None:
    rng = np.random.default_rng(3)
    variables = tuple(Variable(f"v{i}", rng.random(2)) for i in range(70))
    pairs = itertools.combinations(range(70), 2)
    edges = tuple(Edge(f"v{i}", f"v{j}", rng.random((2, 2))) for i, j in pairs)
    found = search(SearchProblem(variables, edges), None, memory_limit_bytes=2**28)
    assert math.isfinite(found.gap_s)


@pytest.mark.parametrize("share", [None, 0.3])
def test_variables_with_one_choice_join_nothing(share: float | None, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(4)

    def variable(number: int) -> Variable:
        count = 1 if number % 35 else 3
        return Variable(f"v{number}", rng.random(count), *(rng.integers(1, 100, count) for _ in range(3)))

    # Three groups of 70, each with two that have choices; all within a group are joined.
    variables = tuple(map(variable, range(210)))
    pairs = (pair for start in (0, 70, 140) for pair in itertools.combinations(range(start, start + 70), 2))
    edges = [Edge(f"v{i}", f"v{j}", rng.random((variables[i].choices, variables[j].choices)) - 0.5) for i, j in pairs]
    problem = SearchProblem(variables, tuple(edges))
    plans = [problem.solution(choices) for choices in itertools.product(*(range(v.choices) for v in variables))]
    sizes = sorted(plan.memory.total for plan in plans)
    budget = None if share is None else sizes[int(share * len(sizes))]
    with caplog.at_level(logging.INFO):
        found = search(problem, budget, memory_limit_bytes=2**20)
    assert "stopped" not in caplog.text
    fitting = [plan.time_s for plan in plans if budget is None or plan.memory.total <= budget]
    assert found.time_s == pytest.approx(min(fitting))
    assert budget is None or found.memory.total <= budget


def peak_bytes(problem: SearchProblem, budget: int | None, limit: int) -> int:
    tracemalloc.start()
    try:
        search(problem, budget, memory_limit_bytes=limit)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("budget", "limit"), [(None, 2**23), (1000, 2**24)])
def test_no_more_memory_is_taken_than_there_may_be(budget: int | None, limit: int) -> None:
    problem = dense(14, 14, 14, seed=5)
    assert peak_bytes(problem, budget, UNLIMITED) > 2 * limit
    # What is linear in the problem, such as the choices that are compared to be pruned, is small beside it.
    assert peak_bytes(problem, budget, limit) < limit


def test_frontiers_that_do_not_fit_end_the_exact_search_with_a_plan_and_a_bound(
    caplog: pytest.LogCaptureFixture,
) -> None:
    problem = random_problem(np.random.default_rng(2), 40, (12, 12), "chain", 10**9)
    fastest, leanest = search(problem, None), 0
    with pytest.raises(MemoryBudgetError) as raised:
        search(problem, leanest)
    budget = (fastest.memory.total + raised.value.least_bytes) // 2
    exact = search(problem, budget)
    with caplog.at_level(logging.WARNING):
        found = search(problem, budget, memory_limit_bytes=2**18)
    assert "because the exact search needs" in caplog.text
    assert "could be beaten by at most" in caplog.text
    assert found.time_s - found.gap_s <= exact.time_s <= found.time_s


def test_what_fits_nowhere_is_proved_without_memory_for_tables() -> None:
    problem = dense(30, 8, 60)
    least = sum(int((v.state_bytes + v.saved_bytes).min()) for v in problem.variables)
    with pytest.raises(MemoryBudgetError) as raised:
        search(problem, least // 2, memory_limit_bytes=0)
    plan = search(problem, raised.value.least_bytes, memory_limit_bytes=0)
    assert plan.memory.total <= raised.value.least_bytes


def test_a_variable_without_any_choice_is_named_with_the_reason() -> None:
    problem = SearchProblem((Variable("a", [1.0]), Variable("block 7", [math.inf, math.inf])))
    with pytest.raises(NoPlanError, match="no strategy of block 7 can be run") as raised:
        search(problem, None)
    assert raised.value.names == ("block 7",)
    error = NoPlanError(raised.value.names, {"block 7": "crashed: it did"})
    assert "block 7 (crashed: it did)" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_limit_of_memory_below_zero_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="memory_limit_bytes=-1"):
        search(SearchProblem((Variable("a", [1.0]),)), None, memory_limit_bytes=-1)
