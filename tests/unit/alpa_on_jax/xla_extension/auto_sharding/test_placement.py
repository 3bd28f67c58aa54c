"""Where values lie: as the solution says, unless a later pass moves them."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from alpa_on_jax.xla_extension.auto_sharding.placement import Placement, boundary_specs, is_undecided
from alpa_on_jax.xla_extension.auto_sharding.solver import solve
from alpa_on_jax.xla_extension.auto_sharding.specs import FIRST, NONE, Mesh
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import graph_of, ilp_of, only, options

X, W = np.ones((64, 4), np.float32), np.ones((4, 8), np.float32)


def _placed(function: Any, *arguments: Any):
    ilp = ilp_of(function, *arguments, chosen=options((4, 1)))
    solution = solve(ilp.problem, ilp.nodes, ilp.costs)
    return ilp.graph, Placement(solution, Mesh((4, 1))), solution


def test_values_lie_as_the_solution_says():
    graph, placement, solution = _placed(lambda x, w: jnp.tanh(x @ w), X, W)
    for instruction in graph.instructions:
        strategy = solution.strategy(instruction)
        assert placement.spec(instruction) == placement.seen_spec(instruction) == strategy.spec
        assert placement.required_specs(instruction) in (strategy.operand_specs, (None,) * len(instruction.operands))


def test_parameters_and_results_lie_as_their_values():
    graph, placement, solution = _placed(lambda x, w: (x @ w, w), X, W)
    inputs, outputs = boundary_specs(placement, graph)
    assert inputs == tuple(solution.strategy(parameter).spec for parameter in graph.parameters)
    assert outputs == tuple(solution.strategy(result).spec for result in graph.results)


def test_an_elementwise_op_that_is_moved_needs_its_operands_where_it_goes():
    graph, placement, solution = _placed(lambda x, y: x * y, X, X)
    multiply = only(graph, "multiply")
    target = (NONE, FIRST) if solution.strategy(multiply).spec != (NONE, FIRST) else (FIRST, NONE)
    placement.changed[multiply] = target
    assert placement.required_specs(multiply) == (target, target)


def test_a_transpose_that_is_moved_needs_its_operand_where_it_comes_from():
    graph, placement, solution = _placed(lambda x: x.T, X)
    transpose = only(graph, "transpose")
    target = (NONE, FIRST) if solution.strategy(transpose).spec != (NONE, FIRST) else (FIRST, NONE)
    placement.changed[transpose] = target
    assert placement.required_specs(transpose) == (target[::-1],)


def test_a_dot_that_is_moved_is_computed_where_it_was():
    graph, placement, solution = _placed(lambda x, w: x @ w, X, W)
    dot = only(graph, "dot_general")
    before = solution.strategy(dot)
    placement.changed[dot] = (NONE, FIRST)
    assert placement.computed_spec(dot) == before.spec
    assert placement.spec(dot) == (NONE, FIRST)
    assert placement.required_specs(dot) == before.operand_specs


def test_a_gathered_value_lies_for_its_users_as_it_was_gathered():
    graph, placement, _ = _placed(lambda x: x * 2, X)
    (parameter,) = graph.parameters
    placement.gathered[parameter] = (NONE, NONE)
    assert placement.seen_spec(parameter) == (NONE, NONE)
    assert boundary_specs(placement, graph)[0] == (placement.spec(parameter),)


def test_constants_and_what_they_are_broadcast_to_are_undecided_until_they_are_returned():
    graph = graph_of(lambda x: (x + 1, jnp.zeros(4)), X)
    undecided = {instruction.opcode for instruction in graph.instructions if is_undecided(instruction)}
    assert undecided <= {"constant", "broadcast_in_dim"}
    assert "constant" in undecided
    assert not is_undecided(graph.results[1])
    assert not is_undecided(graph.parameters[0])
