"""Alpa's solver finds the cheapest choice that aliases and memory allow; its objective is what that costs."""

import dataclasses
import logging
from typing import Any

import numpy as np
import pulp
import pytest
from alpa.shard_parallel import auto_sharding
from hypothesis import assume, given
from hypothesis import strategies as st

from alpa_on_jax import errors
from alpa_on_jax.xla_extension.auto_sharding import solver
from alpa_on_jax.xla_extension.auto_sharding.communication import INFINITY_COST
from alpa_on_jax.xla_extension.auto_sharding.cost_graph import build_cost_graph
from alpa_on_jax.xla_extension.auto_sharding.graph import Instruction
from alpa_on_jax.xla_extension.auto_sharding.solver import Solution, make_problem, solve
from alpa_on_jax.xla_extension.auto_sharding.specs import FIRST, NONE
from alpa_on_jax.xla_extension.auto_sharding.strategies import Node, Strategy
from unit.alpa_on_jax.xla_extension.auto_sharding import handmade
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import Search

pytestmark = pytest.mark.slow


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


def _messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def _chain(cost: float) -> Search:
    """Two nodes, where any choice of the second costs as much to move the first for it."""
    first, second = _node(0, (FIRST,), (NONE,)), _node(1, (FIRST,), (NONE,))
    second.edges.append((first, np.full((2, 2), cost)))
    return Search([first, second])


@pytest.mark.filterwarnings("ignore:Detect unexpected behaviors")
def test_a_solution_that_does_what_is_excluded_is_a_warning_that_names_the_values(caplog):
    assert _solve(_chain(INFINITY_COST)).objective == INFINITY_COST
    (message,) = _messages(caplog)
    assert "1 of 2 values" in message
    assert "(made [4])" in message
    assert "allow_all_gather" in message


@pytest.mark.filterwarnings("ignore:Detect unexpected behaviors")
def test_a_value_whose_only_choices_are_excluded_is_named_too(caplog):
    node = _node(0, (FIRST,), (NONE,))
    node.communication_cost = np.full(2, INFINITY_COST)
    _solve(Search([node]))
    assert "1 of 1 values" in _messages(caplog)[0]


@pytest.mark.filterwarnings("ignore:Detect unexpected behaviors")
def test_a_sum_of_costs_that_is_high_without_anything_excluded_is_no_warning(caplog):
    nodes = [_node(i, (FIRST,), (NONE,)) for i in range(2)]
    for node in nodes:
        node.communication_cost = np.full(2, 0.9 * INFINITY_COST)
    assert _solve(Search(nodes)).objective > INFINITY_COST
    assert not _messages(caplog)


def test_an_ordinary_solution_is_no_warning(caplog):
    _solve(_chain(5.0))
    assert not _messages(caplog)


def _hard() -> Search:
    """A problem for which CBC needs many seconds: random costs between each two of 14 nodes with 6 choices."""
    random = np.random.default_rng(0)
    nodes = [_node(i, *[(FIRST,)] * 6) for i in range(14)]
    for i, node in enumerate(nodes):
        node.edges = [(source, random.random((6, 6))) for source in nodes[:i]]
    return Search(nodes)


def _with_time_limit(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    def solver_with_limit(*args: Any, **options: Any) -> pulp.PULP_CBC_CMD:
        return original(*args, **(options | {"timeLimit": seconds}))

    original = pulp.PULP_CBC_CMD
    monkeypatch.setattr(pulp, "PULP_CBC_CMD", solver_with_limit)


def test_where_time_is_up_before_a_solution_is_found_the_error_has_the_solvers_status(monkeypatch):
    _with_time_limit(monkeypatch, 0.01)
    with pytest.raises(errors.AutoShardingInfeasibleError, match=r"without a solution .*'Not Solved'.* 600 s"):
        _solve(_hard())


def test_where_the_time_limit_was_reached_what_was_found_is_used_with_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(solver, "TIME_LIMIT_S", 0.0)
    assert _solve(_chain(5.0)).objective == 5.0
    (message,) = _messages(caplog)
    assert "time limit" in message
    assert "may not be the cheapest" in message


def _problem_of_a_chain() -> tuple[solver.Problem, Any]:
    search = _chain(5.0)
    costs = build_cost_graph(search.nodes, [])
    return make_problem(search.nodes, costs, [], [[], []], None), costs


def test_what_alpas_solver_asserts_of_its_input_is_raised_unchanged():
    problem, costs = _problem_of_a_chain()
    wrong = dataclasses.replace(problem, compute=problem.compute[:1])
    with pytest.raises(AssertionError, match=r"4 == 2"):
        solve(wrong, {}, costs)


def test_nodes_without_a_choice_in_what_the_solver_calls_a_solution_are_raised_unchanged(monkeypatch):
    def solve_nothing(problem: pulp.LpProblem, *args: Any, **options: Any) -> int:
        problem.status = pulp.LpStatusOptimal
        return problem.status

    monkeypatch.setattr(pulp.LpProblem, "solve", solve_nothing)
    with pytest.raises(AssertionError) as raised:
        _solve(_chain(5.0))
    assert raised.traceback[-1].name == "get_non_zero_index"


@pytest.mark.parametrize(
    "error", [AssertionError("e_val[0][1]"), AssertionError(), RuntimeError("no disk"), ValueError()]
)
def test_any_other_error_of_alpas_solver_is_raised_unchanged(monkeypatch, error):
    def fail(*args: Any) -> None:
        raise error

    monkeypatch.setattr(auto_sharding, "_call_solver_serialized_args", fail)
    with pytest.raises(type(error)) as raised:
        _solve(_chain(5.0))
    assert raised.value is error


def test_without_cbc_the_error_names_it(monkeypatch):
    monkeypatch.setattr(pulp, "listSolvers", lambda *args, **options: [])
    with pytest.raises(errors.SolverMissingError, match="CBC"):
        _solve(_chain(5.0))
