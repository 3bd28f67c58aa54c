"""Alpa's solver finds the cheapest choice that aliases and memory allow; its objective is what that costs."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from alpa_on_jax import errors
from alpa_on_jax.xla_extension.auto_sharding.communication import INFINITY_COST
from alpa_on_jax.xla_extension.auto_sharding.cost_graph import build_cost_graph
from alpa_on_jax.xla_extension.auto_sharding.graph import Instruction
from alpa_on_jax.xla_extension.auto_sharding.solver import Solution, make_problem, solve
from alpa_on_jax.xla_extension.auto_sharding.specs import FIRST, NONE
from alpa_on_jax.xla_extension.auto_sharding.strategies import Node, Strategy
from unit.alpa_on_jax.xla_extension.auto_sharding import handmade
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import Search


def _solve(search: Search) -> Solution:
    nodes = search.nodes
    costs = build_cost_graph(nodes, [(a, b) for a, b, _ in search.discounts])
    live = search.live or [[] for _ in nodes]
    problem = make_problem(nodes, costs, search.aliases, live, search.memory_budget_bytes)
    return solve(problem, {node.instruction: node for node in nodes}, costs)


def _assert_solved(search: Search) -> None:
    cheapest = search.cheapest()
    assume(cheapest < INFINITY_COST)
    solution = _solve(search)
    assert search.is_allowed(solution.choices)
    assert solution.objective == pytest.approx(search.cost(solution.choices), abs=1e-6)
    assert solution.objective == pytest.approx(cheapest, abs=1e-6)


@given(st.data())
def test_the_objective_is_the_cost_of_the_choice_and_no_choice_is_cheaper(data):
    nodes = data.draw(handmade.nodes())
    pairs = data.draw(handmade.sums_of_dots(nodes))
    _assert_solved(Search(nodes, [(a, b, a.communication_cost) for a, b in pairs]))


@given(st.data())
def test_aliases_get_the_same_spec_at_the_least_cost(data):
    nodes = data.draw(handmade.nodes())
    aliases = data.draw(st.lists(st.tuples(st.sampled_from(nodes), st.sampled_from(nodes)), max_size=3))
    aliases = [(a, b) for a, b in aliases if a is not b and set(a.specs) & set(b.specs)]
    _assert_solved(Search(nodes, aliases=aliases))


@given(st.data())
def test_what_is_live_fits_into_the_memory_budget_at_the_least_cost(data):
    nodes = data.draw(handmade.nodes())
    live = [data.draw(st.lists(st.sampled_from(nodes[: i + 1]), unique=True)) for i in range(len(nodes))]
    _assert_solved(Search(nodes, live=live, memory_budget_bytes=data.draw(st.integers(1, 40))))


def _node(index: int, *specs: tuple[int, ...], memory_bytes: float = 1.0) -> Node:
    node = Node(index, Instruction(index, "made", (4,), 16.0, None), tuple(Strategy("made", spec) for spec in specs))
    node.specs = specs
    node.compute_cost = node.communication_cost = np.zeros(len(specs))
    node.memory_bytes = np.full(len(specs), memory_bytes)
    return node


def test_a_budget_that_nothing_fits_into_is_an_error():
    node = _node(0, (FIRST,), (NONE,), memory_bytes=9.0)
    with pytest.raises(errors.AutoShardingInfeasibleError, match="memory"):
        _solve(Search([node], live=[[node]], memory_budget_bytes=8.0))


def test_aliases_without_a_common_spec_are_an_error():
    nodes = [_node(0, (FIRST,)), _node(1, (NONE,))]
    with pytest.raises(errors.AutoShardingInfeasibleError):
        _solve(Search(nodes, aliases=[(nodes[0], nodes[1])]))


def test_a_merged_alias_leaves_only_choices_with_the_same_spec():
    parameter, result = _node(0, (FIRST,), (NONE,)), _node(1, (NONE,), (NONE,))
    result.following, result.follows = parameter, (0, 1)
    result.edges.append((parameter, np.array([[0.0, INFINITY_COST], [INFINITY_COST, 0.0]])))
    solution = _solve(Search([parameter, result], aliases=[(parameter, result)]))
    assert solution.choices == (1, 1)


def test_a_problem_says_how_many_variables_the_solver_makes():
    first, second = _node(0, (FIRST,), (NONE,)), _node(1, (FIRST,), (NONE,))
    second.edges.append((first, np.ones((2, 2))))
    costs = build_cost_graph([first, second], [])
    assert make_problem([first, second], costs, [], [[], []], None).num_variables == 2 + 2 + 4
