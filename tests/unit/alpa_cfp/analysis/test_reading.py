"""`alpa_cfp.analysis.reading`: from StableHLO to a graph without MLIR."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp.analysis.graph import BARRIER, STEP_BARRIER, Graph, Op
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.analysis.rules import FactorKind
from alpa_cfp.spmd.ir.step_barriers import step_barrier
from alpa_cfp.spmd.shardings import sharding_rules
from unit.alpa_cfp.analysis.programs import bytecode_of_text, graph_of

MATRIX = jax.ShapeDtypeStruct((8, 16), jnp.float32)


def only(graph: Graph, name: str) -> Op:
    """The one op of that name."""
    (found,) = [op for op in graph.ops if op.name == name]
    return found


def test_values_know_their_shapes_producers_and_users():
    graph = graph_of(lambda x: (x + x) * 2.0, MATRIX)
    add = only(graph, "stablehlo.add")
    (parameter,) = graph.parameters
    assert add.operands == (parameter, parameter)
    assert graph.values[parameter].users == (add.index,)
    assert graph.values[add.results[0]].shape == (8, 16)
    assert graph.values[add.results[0]].dtype == "f32"
    assert graph.producer(add.results[0]) is add
    assert graph.producer(parameter) is None


def test_the_rule_of_a_dot_says_which_factor_is_summed():
    graph = graph_of(lambda x, y: x @ y, MATRIX, jax.ShapeDtypeStruct((16, 32), jnp.float32))
    rule = only(graph, "stablehlo.dot_general").rule
    assert rule is not None
    (row,), (summed,) = rule.operands[0]
    assert rule.operands[1][0] == (summed,)
    assert rule.results[0][0] == (row,)
    assert rule.kinds[summed] is FactorKind.REDUCTION
    assert rule.sizes[summed] == 16


def test_a_reshape_can_be_split_along_its_major_factor_only():
    graph = graph_of(lambda x: x.reshape(8, 4, 4), MATRIX)
    rule = only(graph, "stablehlo.reshape").rule
    assert rule is not None
    merged, (major,) = rule.operands[0][1], rule.results[0][1]
    assert len(merged) == 2
    assert rule.major_factor(merged) == major


def test_erf_has_no_rule_in_shardy_and_is_elementwise_here():
    graph = graph_of(jax.lax.erf, MATRIX)
    rule = only(graph, "chlo.erf").rule
    assert rule is not None
    assert rule.operands == rule.results
    assert graph.without_rule == ()


def test_an_op_that_is_not_elementwise_and_has_no_rule_is_listed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sharding_rules, "_TOP_K", "")  # as before it had one
    graph = graph_of(lambda x: jax.lax.top_k(x, 2)[0], MATRIX)
    assert [graph.ops[index].name for index in graph.without_rule] == ["chlo.top_k"]


def test_what_derives_from_constants_and_iota_is_free():
    graph = graph_of(lambda x: x + jnp.tril(jnp.ones((8, 16))) * 3.0, MATRIX)
    assert [op.name for op in graph.ops if not graph.constant_derived[op.index]] == ["stablehlo.add"]


def test_ops_of_equal_function_have_equal_attributes_and_others_have_not():
    graph = graph_of(lambda x: (x.sum(0).sum(), x.max(0), x[:4], x[4:], (x * 2).sum(0)), MATRIX)
    sums = [op.attributes for op in graph.ops if op.name == "stablehlo.reduce" and op.operands[0] == 0]
    others = [op.attributes for op in graph.ops if op.name == "stablehlo.reduce" and op.operands[0] != 0]
    slices = [op.attributes for op in graph.ops if op.name == "stablehlo.slice"]
    assert sums[0] != sums[1]
    assert sums[0] == others[-1]
    assert slices[0] != slices[1]


def test_large_constants_are_told_apart_by_their_elements():
    graph = graph_of(lambda x: (x + np.eye(8, 16, 1, np.float32)) * np.eye(8, 16, 2, np.float32), MATRIX)
    texts = [op.attributes for op in graph.ops if op.name == "stablehlo.constant"]
    assert len(set(texts)) == 2
    assert all(len(text) < 200 for text in texts)


def test_names_and_places_in_the_source_leave_no_trace():
    def first(x: jax.Array) -> jax.Array:
        with jax.named_scope("first"):
            return jnp.tanh(x) @ x.T

    def second(other_name: jax.Array) -> jax.Array:
        return jnp.tanh(other_name) @ other_name.T

    assert graph_of(first, MATRIX) == graph_of(second, MATRIX)


def test_a_loop_is_a_graph_of_its_own_with_a_trip_count():
    def program(x: jax.Array, weights: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, weight: (jnp.tanh(carry @ weight), None), x, weights)[0]

    graph = graph_of(program, MATRIX, jax.ShapeDtypeStruct((5, 16, 16), jnp.float32))
    (loop,) = graph.loops
    assert graph.ops[loop.op].name == "stablehlo.while"
    assert loop.trip_count == 5
    assert only(loop.body, "stablehlo.dot_general").rule is not None
    assert len(loop.body.parameters) == len(graph.ops[loop.op].operands)


def test_a_loop_that_ends_by_a_value_has_no_trip_count():
    graph = graph_of(lambda x: jax.lax.while_loop(lambda y: y.sum() < 10.0, lambda y: y * 2.0, x), MATRIX)
    (loop,) = graph.loops
    assert loop.trip_count is None


def test_a_value_that_a_loop_takes_from_outside_is_a_parameter_of_its_body():
    text = """
    func.func public @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %three = stablehlo.constant dense<3> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %r:2 = stablehlo.while(%i = %zero, %a = %x) : tensor<i32>, tensor<4xf32>
       cond {
        %c = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %j = stablehlo.add %i, %one : tensor<i32>
        %b = stablehlo.add %a, %y : tensor<4xf32>
        stablehlo.return %j, %b : tensor<i32>, tensor<4xf32>
      }
      return %r#1 : tensor<4xf32>
    }
    """
    graph = read_graph(bytecode_of_text(text))
    (loop,) = graph.loops
    assert loop.trip_count == 3
    _, _, *captured = graph.ops[loop.op].operands
    assert graph.parameters[1] in captured
    assert len(loop.body.parameters) == 2 + len(captured)


def test_a_step_barrier_is_an_op_of_its_own_that_is_split_as_its_operand():
    graph = graph_of(lambda x: jax.lax.optimization_barrier(step_barrier(x)), MATRIX)
    step = only(graph, STEP_BARRIER)
    assert only(graph, BARRIER).operands == step.results
    assert step.rule is not None
    assert step.rule.operands == step.rule.results
    assert graph.origin(step.results[0]) == step.results[0]  # nothing waits for the backward pass behind it
