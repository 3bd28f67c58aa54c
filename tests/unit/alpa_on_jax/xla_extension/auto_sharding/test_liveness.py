"""Which values are live at each contraction."""

import jax
import jax.numpy as jnp
import numpy as np

from alpa_on_jax.xla_extension.auto_sharding.graph import Graph
from alpa_on_jax.xla_extension.auto_sharding.liveness import live_values
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import graph_of

X, W = np.ones((8, 4), np.float32), np.ones((4, 4), np.float32)


def _at_contractions(graph: Graph) -> list[list[str]]:
    return [
        sorted(value.opcode for value in values)
        for instruction, values in zip(graph.instructions, live_values(graph), strict=True)
        if instruction.opcode in ("dot_general", "convolution")
    ]


def test_only_contractions_are_checked():
    graph = graph_of(lambda x, w: jnp.tanh(x @ w).sum(), X, W)
    checked = [i.opcode for i, values in zip(graph.instructions, live_values(graph), strict=True) if values]
    assert checked == ["dot_general"]


def test_the_operands_and_the_result_of_a_contraction_are_live_while_it_runs():
    assert _at_contractions(graph_of(lambda x, w: x @ w, X, W)) == [["dot_general", "parameter", "parameter"]]


def test_a_value_dies_after_its_last_user():
    graph = graph_of(lambda x, w: jnp.tanh(jnp.sin(x)) @ w, X, W)
    assert _at_contractions(graph) == [["dot_general", "parameter", "tanh"]]


def test_a_value_that_a_later_op_uses_stays():
    graph = graph_of(lambda x, w: (lambda y: y @ w + y)(jnp.sin(x)), X, W)
    assert _at_contractions(graph) == [["dot_general", "parameter", "sine"]]


def test_a_result_of_the_program_stays_to_the_end():
    def function(x, w):
        y = jnp.sin(x)
        return y, jnp.tanh(y) @ w

    assert _at_contractions(graph_of(function, X, W)) == [["dot_general", "parameter", "sine", "tanh"]]


def test_a_parameter_that_is_used_later_is_live_from_the_start():
    graph = graph_of(lambda x, w, v: (x @ w) @ v, X, W, W)
    assert _at_contractions(graph) == [
        ["dot_general", "parameter", "parameter", "parameter"],
        ["dot_general", "dot_general", "parameter"],
    ]


def test_each_value_is_counted_once():
    graph = graph_of(jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w) @ w)), W, X)
    for values in live_values(graph):
        assert len(set(values)) == len(values)
