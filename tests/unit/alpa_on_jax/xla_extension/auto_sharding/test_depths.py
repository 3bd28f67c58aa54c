"""How deep values stand: contractions count much, reductions start anew, broadcasts go back."""

import jax
import jax.numpy as jnp
import numpy as np

from alpa_on_jax.xla_extension.auto_sharding.batch_dims import find_batch_dims
from alpa_on_jax.xla_extension.auto_sharding.depths import find_depths, is_activation
from alpa_on_jax.xla_extension.auto_sharding.graph import Graph
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import graph_of

X, W = np.ones((8, 4), np.float32), np.ones((4, 6), np.float32)


def _depths(graph: Graph) -> list[int]:
    """Of the results."""
    depths = find_depths(graph, find_batch_dims(graph))
    return [depths[result] for result in graph.results]


def test_a_parameter_is_at_the_top():
    assert _depths(graph_of(lambda x: x, X)) == [0]


def test_a_contraction_counts_a_thousand_and_another_op_one():
    assert _depths(graph_of(lambda x, w: (x @ w, jnp.tanh(x @ w), jnp.tanh(x)), X, W)) == [1000, 1001, 1]


def test_a_reshape_counts_nothing():
    assert _depths(graph_of(lambda x: jnp.tanh(x).reshape(32), X)) == [1]


def test_a_transpose_counts_as_one():
    assert _depths(graph_of(lambda x: jnp.tanh(x).T, X)) == [2]


def test_a_value_is_below_its_deepest_operand():
    assert _depths(graph_of(lambda x, y: jnp.tanh(jnp.sin(x)) + y, X, X)) == [3]


def test_a_reduction_starts_anew():
    assert _depths(graph_of(lambda x, w: (x @ w).max(0), X, W)) == [0]


def test_a_broadcast_goes_back():
    def function(x):
        return jax.lax.broadcast_in_dim(jnp.tanh(jnp.sin(x)), (3, 8, 4), (1, 2))

    assert _depths(graph_of(function, X)) == [-3]


def test_a_marker_changes_no_depth():
    graph = graph_of(lambda x: jax.lax.optimization_barrier((jnp.tanh(x),)), X, markers=["one$end"])
    assert _depths(graph) == [1]


def _stage(x, w):
    x, w = jax.lax.optimization_barrier((x, w))
    return x @ w


def test_an_activation_of_another_stage_is_deeper_than_a_parameter():
    graph = graph_of(_stage, X, W, markers=["one$start"])
    batch = find_batch_dims(graph)
    assert [is_activation(parameter, batch) for parameter in graph.parameters] == [True, False]
    assert [find_depths(graph, batch)[parameter] for parameter in graph.parameters] == [20, 0]


def test_a_value_with_a_batch_dim_outside_of_stages_is_no_activation():
    graph = graph_of(lambda x, w: x @ w, X, W)
    assert not any(is_activation(parameter, find_batch_dims(graph)) for parameter in graph.parameters)


def test_a_value_that_goes_through_an_end_marker_is_no_activation():
    graph = graph_of(_stage, X, W, markers=["one$end"])
    assert not any(is_activation(parameter, find_batch_dims(graph)) for parameter in graph.parameters)


def test_integers_are_no_activations():
    graph = graph_of(_stage, X.astype(np.int32), W.astype(np.int32), markers=["one$start"])
    assert not any(is_activation(parameter, find_batch_dims(graph)) for parameter in graph.parameters)
