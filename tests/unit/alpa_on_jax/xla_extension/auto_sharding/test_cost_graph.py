"""Merging nodes into what they follow changes the cost of no choice."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_on_jax.xla_extension.auto_sharding.communication import INFINITY_COST
from alpa_on_jax.xla_extension.auto_sharding.cost_graph import build_cost_graph
from alpa_on_jax.xla_extension.auto_sharding.solver import make_problem
from alpa_on_jax.xla_extension.auto_sharding.strategies import Node
from unit.alpa_on_jax.xla_extension.auto_sharding import handmade
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import Search, ilp_of, options, problem_cost


def _remaining_choices(nodes: list[Node], follow: tuple[int, ...]):
    """Every choice for the nodes that are not merged; 0 for the others."""
    ranges = [range(len(node.strategies)) if follow[node.index] < 0 else range(1) for node in nodes]
    return itertools.product(*ranges)


@given(st.data())
def test_every_choice_costs_what_it_costs_without_merging(data):
    nodes = data.draw(handmade.nodes())
    pairs = data.draw(handmade.sums_of_dots(nodes))
    costs = build_cost_graph(nodes, pairs)
    problem = make_problem(nodes, costs, [], [[] for _ in nodes], None)
    search = Search(nodes, [(a, b, a.communication_cost) for a, b in pairs])
    for choices in _remaining_choices(nodes, costs.follow):
        own = [costs.own_strategy(i, choices[i if costs.follow[i] < 0 else costs.follow[i]]) for i in range(len(nodes))]
        assert problem_cost(problem, choices) == search.cost(own)


@given(handmade.nodes())
def test_every_choice_that_is_possible_without_merging_remains(nodes):
    costs = build_cost_graph(nodes, [])
    possible = {
        choices
        for choices in itertools.product(*(range(len(node.strategies)) for node in nodes))
        if Search(nodes).cost(choices) < INFINITY_COST
    }
    for choices in possible:
        for node, into in enumerate(costs.follow):
            if into >= 0:
                assert costs.own_strategy(node, choices[into]) == choices[node]


@given(handmade.nodes())
def test_exactly_the_nodes_that_follow_are_merged_each_into_its_root(nodes):
    costs = build_cost_graph(nodes, [])
    assert costs.follow == tuple(-1 if node.following is None else node.root.index for node in nodes)


@given(handmade.nodes())
def test_edges_join_different_nodes_that_remain_lower_numbers_first(nodes):
    costs = build_cost_graph(nodes, [])
    for (i, j), matrix in costs.edges.items():
        assert i < j
        assert costs.follow[i] == costs.follow[j] == -1
        assert matrix.shape == (len(nodes[i].strategies), len(nodes[j].strategies))


def test_two_dots_that_are_added_pay_one_all_reduce():
    x, w = np.ones((4, 64), np.float32), np.ones((64, 4), np.float32)
    ilp = ilp_of(lambda x, w, y, v: x @ w + y @ v, x, w, x, w, chosen=options((4, 1)))
    nodes = list(ilp.nodes.values())
    first, second = (node for node in nodes if node.instruction.dot)
    key = (first.index, second.index)
    saved = build_cost_graph(nodes, []).edges[key] - build_cost_graph(nodes, [(first, second)]).edges[key]
    assert saved == pytest.approx(np.diag(first.communication_cost))
    assert ilp.costs.edges[key] == pytest.approx(build_cost_graph(nodes, [(first, second)]).edges[key])
    assert first.communication_cost.any()
