"""What holds between searches of related problems: other orders, other budgets, more layers."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.search import Edge, MemoryBudgetError, SearchProblem, Variable, search
from unit.alpa_cfp.search.problems import budgets, plans, problems, random_problem

pytestmark = pytest.mark.slow


def layered(layers: int, tied: bool = False) -> SearchProblem:
    """Equal layers of two blocks, in seconds and bytes as a model has them; optionally the ends are joined."""
    rng = np.random.default_rng(3)
    times, state = np.array([1e-3, 1.31e-3, 1.74e-3]), np.array([9e8, 4e8, 1.1e8]).round()
    reshard = rng.uniform(0, 2e-4, (3, 2))
    variables, edges = [], []
    for layer in range(layers):
        variables += [
            Variable(f"segment {layer}", times, state, [3e7, 2e7, 2e7], [5e8, 6e8, 4e8]),
            Variable(f"boundary {layer}", [0, 1e-5], 0, [8e6, 2e6]),
        ]
        edges.append(Edge(f"segment {layer}", f"boundary {layer}", reshard))
        if layer:
            edges.append(Edge(f"boundary {layer - 1}", f"segment {layer}", reshard.T))
    if tied:
        edges.append(Edge("segment 0", f"segment {layers - 1}", 1e-4 * (1 - np.eye(3))))
    return SearchProblem(tuple(variables), tuple(edges))


@given(problem=problems(), data=st.data())
def test_the_order_of_variables_and_edges_does_not_change_the_best_time(
    problem: SearchProblem, data: st.DataObject
) -> None:
    listed = plans(problem)
    if not listed:
        return
    budget = data.draw(st.sampled_from([None, max(0, listed[0].memory.total), max(0, listed[-1].memory.total)]))
    shuffled = SearchProblem(
        tuple(data.draw(st.permutations(problem.variables))), tuple(data.draw(st.permutations(problem.edges)))
    )
    try:
        expected = search(problem, budget).time_s
    except MemoryBudgetError:
        with pytest.raises(MemoryBudgetError):
            search(shuffled, budget)
        return
    assert search(shuffled, budget).time_s == expected


@given(problem=problems())
def test_a_larger_budget_never_makes_the_plan_slower(problem: SearchProblem) -> None:
    if not plans(problem):
        return
    before = np.inf
    for budget in budgets(problem)[::3]:
        try:
            after = search(problem, budget).time_s
        except MemoryBudgetError:
            after = np.inf
        assert after <= before
        before = after


@given(problem=problems())
def test_a_budget_of_exactly_what_the_best_plan_takes_gives_it(problem: SearchProblem) -> None:
    for plan in plans(problem)[:4]:
        if plan.memory.total >= 0:
            assert search(problem, plan.memory.total).time_s <= plan.time_s


def test_the_same_problem_gives_the_same_plan_each_time() -> None:
    first = search(layered(6), 4 * 10**9)
    assert all(search(layered(6), 4 * 10**9) == first for _ in range(3))


@pytest.mark.parametrize("tied", [False, True])
def test_repeated_layers_are_searched_exactly_at_every_budget(tied: bool) -> None:
    problem = layered(4, tied)
    listed = plans(problem)
    totals = sorted({s.memory.total for s in listed})
    for budget in totals[:: len(totals) // 12]:
        fastest = min(s.time_s for s in listed if s.memory.total <= budget)
        assert search(problem, budget).time_s == pytest.approx(fastest, rel=1e-12)


def test_a_plan_of_many_layers_is_as_fast_as_its_parts_allow() -> None:
    few, many = search(layered(3), None), search(layered(30), None)
    per_layer = search(layered(4), None).time_s - few.time_s
    assert many.time_s == pytest.approx(few.time_s + 27 * per_layer, rel=1e-12)


def test_a_plan_a_byte_too_large_is_refused_among_sizes_of_gigabytes() -> None:
    problem = layered(12)
    plan = search(problem, 6 * 10**9)
    tighter = search(problem, plan.memory.total - 1)
    assert tighter.memory.total < plan.memory.total
    assert tighter.time_s >= plan.time_s
    assert search(problem, plan.memory.total) == plan


def test_components_that_no_edge_joins_share_the_budget() -> None:
    rng = np.random.default_rng(5)
    parts = [random_problem(rng, 2, (3, 3), "chain", 20) for _ in range(3)]
    renamed = [
        SearchProblem(
            tuple(
                Variable(f"{n}{v.name}", v.time_s, v.state_bytes, v.saved_bytes, v.transient_bytes)
                for v in part.variables
            ),
            tuple(Edge(f"{n}{e.first}", f"{n}{e.second}", e.time_s) for e in part.edges),
        )
        for n, part in enumerate(parts)
    ]
    whole = SearchProblem(
        tuple(v for part in renamed for v in part.variables), tuple(e for part in renamed for e in part.edges)
    )
    listed = plans(whole)
    budget = listed[len(listed) // 2].memory.total
    fastest = min(s.time_s for s in listed if s.memory.total <= budget)
    assert search(whole, budget).time_s == fastest


def test_a_plan_is_a_value_that_cannot_be_changed() -> None:
    plan = search(layered(1), None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.time_s = 0.0  # pyright: ignore[reportAttributeAccessIssue]
