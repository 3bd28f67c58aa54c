"""A program as a graph: one instruction for each value, with what its op says about dims."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_on_jax.xla_extension.auto_sharding.graph import ConvDims, DotDims, build_graph
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import graph_of, only

X, W = np.ones((8, 4), np.float32), np.ones((4, 6), np.float32)
BATCHED = np.ones((2, 8, 4), np.float32)
IMAGE, KERNEL = np.ones((2, 5, 5, 4), np.float32), np.ones((3, 3, 4, 6), np.float32)


def test_operands_come_before_their_users_and_know_them():
    graph = graph_of(lambda x, w: jnp.tanh(x @ w) + jnp.sum(x), X, W)
    for place, instruction in enumerate(graph.instructions):
        assert instruction.index == place
        for operand in instruction.operands:
            assert operand.index < place
            assert operand.users.count(instruction) == 1


def test_parameters_and_results_are_in_the_order_of_the_program():
    graph = graph_of(lambda x, w: (w * 2, x), X, W)
    assert [parameter.shape for parameter in graph.parameters] == [(8, 4), (4, 6)]
    assert [result.opcode for result in graph.results] == ["multiply", "parameter"]
    assert [i for i in graph.instructions if i.is_output] == sorted(graph.results, key=lambda r: r.index)


def test_sizes_are_in_bytes_of_the_whole_value():
    graph = graph_of(lambda x: x.astype(jnp.bfloat16), X)
    assert [instruction.size_bytes for instruction in graph.instructions] == [128, 64]


def test_a_value_used_twice_by_an_op_has_one_user():
    graph = graph_of(lambda x: x * x, X)
    assert only(graph, "multiply").operands == [graph.parameters[0]] * 2
    assert graph.parameters[0].users == [only(graph, "multiply")]


def test_a_dot_says_which_dims_are_which():
    assert only(graph_of(lambda x, w: x @ w, X, W), "dot_general").dot == DotDims((), (), 1, 0, 0, 1)
    batched = only(graph_of(lambda x: jnp.einsum("bik,bjk->bij", x, x + 1), BATCHED), "dot_general").dot
    assert (batched.lhs_batch, batched.rhs_batch) == ((0,), (0,))
    assert (batched.out_lhs, batched.out_rhs) == (1, 2)


def test_a_dot_that_was_not_simplified_is_refused():
    text = jax.jit(lambda x: jnp.einsum("abc,dbc->ad", x, x)).lower(BATCHED).as_text()
    module = HloModule.from_stablehlo("tested", text)
    with pytest.raises(ValueError, match="not canonical"):
        mlir.edit(module.bytecode, lambda parsed: bool(build_graph(mlir.main_function(parsed))))


def test_a_convolution_says_which_dims_are_which():
    graph = graph_of(
        lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        IMAGE,
        KERNEL,
    )
    assert only(graph, "convolution").conv == ConvDims(0, 3, 2, 3, 0, 3, 1, 1)


def test_transposes_broadcasts_reductions_and_sorts_say_their_dims():
    assert only(graph_of(lambda x: x.transpose(1, 2, 0), BATCHED), "transpose").dims == (1, 2, 0)
    broadcast = graph_of(lambda x: jax.lax.broadcast_in_dim(x, (3, 8, 4), (1, 2)), X)
    assert only(broadcast, "broadcast_in_dim").dims == (1, 2)
    assert only(graph_of(lambda x: x.sum((0, 2)), BATCHED), "reduce").dims == (0, 2)
    assert only(graph_of(lambda x: jnp.sort(x, axis=0), X), "sort").dims == (0,)


def test_an_op_with_several_results_is_followed_by_its_further_results():
    graph = graph_of(lambda x, y: jax.lax.sort((x, y), num_keys=1), X, X)
    first, second = graph.results
    assert (first.opcode, second.opcode) == ("sort", "result")
    assert second.operands == [first]


def test_each_value_goes_through_a_marker_by_itself():
    graph = graph_of(lambda x, w: jax.lax.optimization_barrier((x + 1, w + 1)), X, W, markers=["stage$start"])
    markers = [instruction for instruction in graph.instructions if instruction.opcode == "marker"]
    assert [marker.stage for marker in markers] == ["stage$start"] * 2
    assert [marker.operands[0].shape for marker in markers] == [(8, 4), (4, 6)]


def test_of_taken_rows_the_dims_that_are_whole_can_be_split():
    rows = only(graph_of(lambda x, i: x[i], X, np.zeros(3, np.int32)), "gather")
    assert rows.gather_window_dims == (1,)


def test_of_updated_rows_the_dims_that_are_whole_can_be_split():
    rows = only(graph_of(lambda x, i, y: x.at[i].add(y), X, np.zeros(3, np.int32), X[:3]), "scatter")
    assert rows.gather_window_dims == (1,)


def test_integers_are_told_from_numbers_and_booleans():
    graph = graph_of(lambda i, x: (i + 1, x > 0), np.zeros(3, np.int32), X)
    assert [i.is_integer for i in graph.parameters] == [True, False]
    assert not only(graph, "compare").is_integer


def test_a_constant_says_whether_all_its_elements_are_equal():
    different = np.arange(4, dtype=np.float32)
    constants = [i for i in graph_of(lambda x: (x + different, x * 2), X).instructions if i.opcode == "constant"]
    assert {constant.shape: constant.is_splat for constant in constants} == {(4,): False, (): True}
