"""The batch dim of each value, found from the first contraction of each stage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_on_jax.xla_extension.auto_sharding.batch_dims import find_batch_dims
from alpa_on_jax.xla_extension.auto_sharding.graph import Graph
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import graph_of

X, W, V = (np.ones(shape, np.float32) for shape in ((8, 4), (4, 6), (6, 3)))
TOKENS = np.ones((2, 8, 4), np.float32)


def _of_parameters(graph: Graph) -> list[int | None]:
    batch = find_batch_dims(graph)
    return [batch.get(parameter) for parameter in graph.parameters]


def _of_results(graph: Graph) -> list[int | None]:
    batch = find_batch_dims(graph)
    return [batch.get(result) for result in graph.results]


def test_dim_0_of_the_first_dot_is_the_batch_dim():
    graph = graph_of(lambda x, w: x @ w, X, W)
    assert _of_results(graph) == [0]
    assert _of_parameters(graph) == [0, None]


def test_a_program_without_contractions_has_no_batch_dims():
    assert find_batch_dims(graph_of(lambda x: jnp.tanh(x).sum(0), X)) == {}


def test_dim_0_of_the_first_convolution_is_the_batch_dim():
    graph = graph_of(lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME"), np.ones((2, 4, 5, 5)), np.ones((6, 4, 3, 3)))
    assert _of_parameters(graph) == [0, None]
    assert _of_results(graph) == [0]


def test_a_second_dot_takes_the_batch_dim_of_its_left_side():
    graph = graph_of(lambda x, w, v: jnp.tanh(x @ w) @ v, X, W, V)
    assert _of_results(graph) == [0]
    assert _of_parameters(graph) == [0, None, None]


def test_a_dot_takes_the_batch_dim_of_its_right_side_as_the_second_free_dim():
    graph = graph_of(lambda x, w, v: jnp.einsum("jk,ik->ij", x @ w, v), X, W, np.ones((3, 6), np.float32))
    assert only_dots(graph)[-1].shape in ((3, 8), (8, 3))
    batch = find_batch_dims(graph)
    last = only_dots(graph)[-1]
    assert last.shape[batch[last]] == 8


def only_dots(graph: Graph):
    return [instruction for instruction in graph.instructions if instruction.dot]


def test_a_gradient_of_a_weight_contracts_the_batch_dim_away():
    graph = graph_of(jax.grad(lambda w, x: jnp.sum((x @ w) ** 2)), W, X)
    assert _of_results(graph) == [None]


def test_a_batched_dot_keeps_the_batch_dim_among_its_batch_dims():
    graph = graph_of(lambda x, y: jnp.einsum("bik,bjk->bij", x, y), TOKENS, TOKENS)
    assert _of_parameters(graph) == [0, 0]


def test_elementwise_ops_hand_the_batch_dim_on_in_both_directions():
    graph = graph_of(lambda x, w, y: jnp.exp(jnp.sin(x) @ w) * y, X, W, np.ones((8, 6), np.float32))
    assert _of_parameters(graph) == [0, None, 0]
    assert _of_results(graph) == [0]


def test_a_transpose_takes_the_batch_dim_where_it_goes():
    graph = graph_of(lambda x, w: jnp.swapaxes(jnp.tanh(x @ w), 0, 1) * 2, X, W)
    assert _of_results(graph) == [1]


def test_a_transpose_of_three_dims_takes_the_batch_dim_where_it_goes():
    graph = graph_of(lambda x, w: jnp.tanh(x @ w).reshape(8, 2, 3).transpose(1, 2, 0) * 2, X, W)
    assert _of_results(graph) == [2]


def test_what_is_transposed_before_the_first_dot_has_the_batch_dim_where_it_came_from():
    graph = graph_of(lambda x, w: jnp.einsum("bik,bkj->bij", x.transpose(1, 0, 2) * 2, w), TOKENS, np.ones((8, 4, 3)))
    assert _of_parameters(graph) == [1, 0]


def test_a_reshape_keeps_a_leading_batch_dim():
    graph = graph_of(lambda x, w: jnp.tanh(x @ w).reshape(8, 2, 3), X, W)
    assert _of_results(graph) == [0]


def test_a_reshape_that_changes_the_dims_before_the_batch_dim_loses_it():
    graph = graph_of(lambda x, w: jnp.tanh(x @ w).T.reshape(2, 3, 8) + 1, X, W)
    assert _of_results(graph) == [None]


def test_a_reduction_keeps_batch_dim_0_alone():
    kept = graph_of(lambda x, w: jnp.tanh(x @ w).max(1), X, W)
    lost = graph_of(lambda x, w: jnp.tanh(x @ w).max(0), X, W)
    assert (_of_results(kept), _of_results(lost)) == ([0], [None])


def test_a_broadcast_takes_the_batch_dim_where_the_dim_goes():
    graph = graph_of(lambda x, w: jnp.broadcast_to(jnp.tanh(x @ w).max(1)[None, :], (5, 8)) * 2, X, W)
    assert _of_results(graph) == [1]


def test_what_is_broadcast_along_the_batch_dim_has_none_of_its_own():
    graph = graph_of(lambda x, w, b: x @ w + b, X, W, np.ones(6, np.float32))
    assert _of_parameters(graph) == [0, None, None]


def test_slices_along_other_dims_keep_the_batch_dim():
    graph = graph_of(lambda x, w: (x @ w)[:, 1:3], X, W)
    assert _of_results(graph) == [0]


def test_a_slice_of_the_batch_dim_has_none():
    graph = graph_of(lambda x, w: (x @ w)[2:5], X, W)
    assert _of_results(graph) == [None]


@pytest.mark.parametrize(("axis", "found"), [(0, None), (1, 0)])
def test_a_sort_keeps_the_batch_dim_if_it_sorts_along_another_one(axis, found):
    graph = graph_of(lambda x, w: jnp.sort(x @ w, axis=axis), X, W)
    assert _of_results(graph) == [found]


def test_taking_columns_keeps_the_batch_dim_and_taking_rows_does_not():
    columns = graph_of(lambda x, w, i: (x @ w)[:, i], X, W, np.zeros(3, np.int32))
    rows = graph_of(lambda x, w, i: (x @ w)[i], X, W, np.zeros(3, np.int32))
    assert (_of_results(columns), _of_results(rows)) == ([0], [None])


def test_the_first_dot_after_each_start_marker_is_a_source_too():
    def two_stages(x, w, y, v):
        x, w = jax.lax.optimization_barrier((x, w))
        (first,) = jax.lax.optimization_barrier((x @ w,))
        y, v = jax.lax.optimization_barrier((y, v))
        return first, y @ v

    markers = ["one$start", "one$end", "two$start"]
    other = np.ones((5, 6), np.float32)
    assert _of_results(graph_of(two_stages, X, W, other, V, markers=markers)) == [0, 0]
    assert _of_results(graph_of(two_stages, X, W, other, V, markers=["one$end"] * 3)) == [0, None]


def test_a_gradient_of_a_weight_that_comes_first_in_its_stage_is_no_source():
    def forward_and_backward(x, w, cotangent):
        x, w = jax.lax.optimization_barrier((x, w))
        (y,) = jax.lax.optimization_barrier((x @ w,))
        x, w, cotangent = jax.lax.optimization_barrier((x, w, cotangent))
        return y, x.T @ cotangent, cotangent @ w.T

    # All dims are equal, so that sizes tell nothing.
    square = np.ones((8, 8), np.float32)
    markers = ["one$start", "one$end", "one_backward$start"]
    graph = graph_of(forward_and_backward, square, square, square, markers=markers)
    assert _of_parameters(graph) == [0, None, 0]
    assert _of_results(graph) == [0, None, 0]


def test_a_stage_with_nothing_but_a_gradient_of_a_weight_has_no_source():
    def forward_and_backward(x, w, cotangent):
        kept = x
        x, w = jax.lax.optimization_barrier((x, w))
        (y,) = jax.lax.optimization_barrier((x @ w,))
        kept, cotangent = jax.lax.optimization_barrier((kept, cotangent))
        return y, kept.T @ cotangent

    square = np.ones((8, 8), np.float32)
    markers = ["one$start", "one$end", "one_backward$start"]
    assert _of_results(graph_of(forward_and_backward, square, square, square, markers=markers)) == [0, None]


def test_a_value_has_the_same_batch_dim_before_and_behind_a_marker():
    def staged(x, w):
        x, w = jax.lax.optimization_barrier((x, w))
        return x @ w

    graph = graph_of(staged, X, W, markers=["one$start"])
    assert _of_parameters(graph) == [0, None]


def test_every_batch_dim_is_a_dim_of_its_value():
    def loss(w, v, x):
        return jnp.mean(jax.nn.softmax(jnp.tanh(x @ w) @ v) ** 2)

    graph = graph_of(jax.grad(loss, argnums=(0, 1)), W, V, X)
    for instruction, dim in find_batch_dims(graph).items():
        assert 0 <= dim < instruction.rank


def test_the_batch_dim_of_a_graph_value_has_the_size_of_the_batch():
    def loss(w, v, x):
        return jnp.mean((jnp.tanh(x @ w) @ v) ** 2)

    graph = graph_of(jax.grad(loss, argnums=(0, 1)), W, V, X)
    assert {instruction.shape[dim] for instruction, dim in find_batch_dims(graph).items()} == {8}
