"""`alpa_cfp.analysis.blocks` on whole models: the paper's blocks, and what holds for every program."""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from alpa_cfp.analysis.blocks import Blocks, find_blocks
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.analysis.structure import find_structure
from unit.alpa_cfp.analysis.programs import (
    GATE_ARGUMENTS,
    MODELS,
    POSITION_ARGUMENTS,
    SCORE_ARGUMENTS,
    blocks_of,
    forward_ops,
    gates,
    gradients,
    graph_of,
    model_blocks,
    model_bytecode,
    roles,
    with_biased_scores,
    with_loops,
    with_positions,
)

pytestmark = pytest.mark.slow

X = jax.ShapeDtypeStruct((4, 8, 16), jnp.float32)
ROWS = jax.ShapeDtypeStruct((8, 16), jnp.float32)
W = jax.ShapeDtypeStruct((16, 16), jnp.float32)


def forward_counts(blocks: Blocks) -> list[int]:
    """The number of forward contractions of each block."""
    return [len(forward_ops(blocks, block.index)) for block in blocks.blocks]


@pytest.mark.parametrize("name", MODELS)
def test_every_op_is_in_one_block_or_in_the_glue_of_one_or_free(name: str):
    for blocks in with_loops(model_blocks(name)):
        graph = blocks.graph
        owned = Counter(op for block in blocks.blocks for op in (*block.members, *block.glue))
        assert set(owned) == {op.index for op in graph.ops if not graph.constant_derived[op.index]}
        assert set(owned.values()) == {1}
        assert all(
            (block is None) == constant_derived
            for block, constant_derived in zip(blocks.block_of_op, graph.constant_derived, strict=True)
        )
        for block in blocks.blocks:
            assert all(blocks.block_of_op[op] == block.index for op in (*block.members, *block.glue))


@pytest.mark.parametrize("name", MODELS)
def test_blocks_are_in_the_order_of_their_first_contractions(name: str):
    for blocks in with_loops(model_blocks(name)):
        firsts = [block.entries[0].op for block in blocks.blocks if block.entries]
        assert firsts == sorted(firsts)
        assert [block.index for block in blocks.blocks] == list(range(len(blocks.blocks)))


@pytest.mark.parametrize("name", MODELS)
def test_every_member_belongs_to_a_contraction_of_which_each_required_side_can_be_split(name: str):
    for blocks in with_loops(model_blocks(name)):
        for block in blocks.blocks:
            sides = {factor.side for factor in block.usable_factors}
            assert Side.BATCH in sides or {Side.LEFT, Side.RIGHT} <= sides or block.loop is not None


@pytest.mark.parametrize("name", MODELS)
def test_gradients_and_rematerialised_ops_are_in_the_block_of_their_forward_contraction(name: str):
    for blocks in with_loops(model_blocks(name)):
        for block in blocks.blocks:
            for entry in block.entries:
                assert blocks.block_of_op[entry.op] == blocks.block_of_op[entry.forward] == block.index


def test_a_gpt_layer_is_attention_projection_and_two_dots():
    blocks = model_blocks("gpt", 2)
    # Two embeddings by one-hot dots, two layers, the language model's head.
    assert forward_counts(blocks) == [1, 1, *(3, 1, 1, 1), *(3, 1, 1, 1), 1]
    attention = blocks.blocks[2]
    assert roles(blocks, 2) == ["forward"] * 3 + ["gradient"] * 6
    names = {blocks.graph.ops[op].name for op in attention.members}
    assert {"stablehlo.exponential", "stablehlo.divide", "stablehlo.slice"} <= names


def test_attention_is_split_by_sample_and_by_head_and_not_by_position():
    attention = model_blocks("gpt", 2).blocks[2]
    max_shards = [(factor.side, factor.max_shards) for factor in attention.usable_factors]
    assert max_shards == [(Side.LEFT, 16), (Side.RIGHT, 8), (Side.REDUCTION, 32)]
    assert [factor.side for factor in attention.factors if not factor.usable] == [Side.LEFT]


def test_a_dense_layer_is_split_by_sample_by_position_by_column_and_by_row():
    mlp_up = model_blocks("gpt", 2).blocks[4]
    max_shards = [(factor.side, factor.max_shards) for factor in mlp_up.usable_factors]
    assert max_shards == [(Side.LEFT, 16), (Side.LEFT, 16), (Side.RIGHT, 128), (Side.REDUCTION, 32)]


def test_the_gelu_is_in_the_block_of_the_dot_before_it():
    blocks = model_blocks("gpt", 2)
    assert "chlo.erfc" in {blocks.graph.ops[op].name for op in blocks.blocks[4].members}


@pytest.mark.parametrize("name", ["gpt", "bert", "llama", "llama, remat"])
def test_each_layer_adds_four_blocks(name: str):
    small, large = model_blocks(name, 2), model_blocks(name, 4)
    assert len(large.blocks) - len(small.blocks) == 2 * 4


def test_inner_layers_have_blocks_of_equal_ops():
    blocks = model_blocks("gpt", 4)
    second, third = blocks.blocks[6:10], blocks.blocks[10:14]
    for one, other in zip(second, third, strict=True):
        names = [[blocks.graph.ops[op].name for op in (*block.members, *block.glue)] for block in (one, other)]
        assert names[0] == names[1]
        assert [factor.max_shards for factor in one.factors] == [factor.max_shards for factor in other.factors]


def test_separate_queries_keys_and_values_are_one_block_and_so_are_gate_and_up():
    blocks = model_blocks("llama", 2)
    assert forward_counts(blocks) == [1, *(5, 1, 2, 1), *(5, 1, 2, 1), 1]


def test_grouped_queries_are_split_in_as_many_parts_as_there_are_key_heads():
    attention = model_blocks("llama", 2).blocks[1]
    assert [factor.max_shards for factor in attention.usable_factors if factor.side is Side.RIGHT] == [4]


def test_an_embedding_lookup_is_a_block_with_its_scatter():
    blocks = model_blocks("llama", 2)
    names = [blocks.graph.ops[entry.op].name for entry in blocks.blocks[0].entries]
    assert names == ["stablehlo.gather", "stablehlo.scatter"]
    assert 0 in blocks.blocks[0].parameters


def test_a_sum_is_in_the_block_of_the_operand_of_which_more_elements_are_split():
    blocks = blocks_of(with_positions, *POSITION_ARGUMENTS)
    words, positions, _ = blocks.blocks
    assert [blocks.graph.ops[op].name for op in words.members] == ["stablehlo.gather", "stablehlo.add"]
    assert [factor.max_shards for factor in words.usable_factors if factor.side is Side.LEFT] == [4, 8]
    assert [factor.max_shards for factor in positions.usable_factors if factor.side is Side.LEFT] == [8]


def test_a_bias_that_all_samples_share_is_added_in_the_block_of_the_scores():
    blocks = blocks_of(with_biased_scores, *SCORE_ARGUMENTS)
    graph = blocks.graph
    products = (op for op in graph.ops if op.name == "stablehlo.dot_general")
    (scores,) = (op for op in products if graph.shape(op.results[0])[2:] == (32, 32))
    added = [op.index for op in graph.ops if op.name == "stablehlo.add" and scores.results[0] in op.operands]
    assert added
    assert any({scores.index, *added} <= set(block.members) for block in blocks.blocks)


def test_positions_leave_their_block_before_they_are_broadcast_and_come_back_summed():
    blocks = blocks_of(gradients(with_positions, 3), *POSITION_ARGUMENTS)
    graph, positions = blocks.graph, blocks.blocks[1]
    inside = {*positions.members, *positions.glue}
    values = {value for op in inside for value in (*graph.ops[op].operands, *graph.ops[op].results)}
    assert all(graph.shape(value)[:2] != (4, 8) for value in values)
    assert "stablehlo.scatter" in {graph.ops[op].name for op in inside}


def test_rematerialised_positions_are_broadcast_where_they_were_first():
    blocks = blocks_of(jax.value_and_grad(jax.checkpoint(with_positions), argnums=(0, 1, 2)), *POSITION_ARGUMENTS)
    graph, original = blocks.graph, find_structure(blocks.graph).original
    wide = [
        op.index
        for op in graph.ops
        if op.name == "stablehlo.broadcast_in_dim" and graph.shape(op.results[0]) == (4, 8, 16)
        if not graph.constant_derived[op.index]
    ]
    again = [op for op in wide if original[op] in wide and original[op] != op]
    assert again
    assert {blocks.block_of_op[op] for op in again} == {blocks.block_of_op[original[op]] for op in again} == {0}


def test_a_mean_of_a_parameter_is_in_the_block_that_uses_the_parameter():
    def step(x: jax.Array, *weights: jax.Array) -> Any:
        def loss(weights: Any) -> jax.Array:
            y = x
            for w in weights:
                y = jnp.tanh(y @ w)
            return jnp.sum(y)

        grads = jax.grad(loss)(weights)
        return tuple(w - 0.1 * g - 0.01 * (w - w.mean(0)) for w, g in zip(weights, grads, strict=True))

    blocks = blocks_of(step, ROWS, W, W, W)
    assert [block.parameters for block in blocks.blocks] == [(0, 1), (2,), (3,)]


def test_products_of_one_value_that_one_other_block_reads_are_one_block():
    blocks = blocks_of(gradients(gates, 6), *GATE_ARGUMENTS)
    assert forward_counts(blocks) == [2, 2]
    (columns,) = [factor for factor in blocks.blocks[0].usable_factors if factor.side is Side.RIGHT]
    assert {blocks.graph.ops[op].results for op, _ in columns.places} >= {
        blocks.graph.ops[entry.op].results for entry in blocks.blocks[0].entries if entry.role == "forward"
    }


@pytest.mark.parametrize("transform", [jax.grad, jax.value_and_grad])
def test_rematerialised_products_of_one_value_are_one_block_too(transform: Any):
    blocks = blocks_of(transform(jax.checkpoint(gates), argnums=(2, 3, 4, 5)), *GATE_ARGUMENTS)
    assert forward_counts(blocks) == [2, 2]


@pytest.mark.parametrize("flipped", [0, 1])
def test_products_that_cannot_be_split_alike_stay_apart(flipped: int):
    def either(s: jax.Array, u: jax.Array, x: jax.Array, *weights: jax.Array) -> jax.Array:
        """One of the products is turned round along samples, the other along positions."""
        first, second = (
            jnp.flip(jnp.einsum("bsd,dh->bsh", x, w), axis)
            for w, axis in zip(weights, (flipped, 1 - flipped), strict=True)
        )
        return jnp.tanh(jnp.einsum("bsd,dh->bsh", s, u) + first + second)

    square = jax.ShapeDtypeStruct((8, 8, 16), jnp.float32)
    blocks = blocks_of(either, square, W, square, W, W)
    assert forward_counts(blocks) == [1, 1, 1]
    assert all(any(each.side is Side.LEFT for each in block.usable_factors) for block in blocks.blocks)


def test_products_of_one_value_that_several_blocks_read_stay_apart():
    def two_heads(x: jax.Array, *weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        a, b, c, d = weights
        return jnp.tanh(x @ a) @ b, jnp.tanh(x @ c) @ d

    assert forward_counts(blocks_of(two_heads, ROWS, W, W, W, W)) == [1, 1, 1, 1]


def test_rematerialised_layers_change_no_block_but_add_entries():
    plain, remat = model_blocks("llama", 2), model_blocks("llama, remat", 2)
    assert forward_counts(plain) == forward_counts(remat)
    for one, other in zip(plain.blocks, remat.blocks, strict=True):
        assert [(f.side, f.max_shards, f.usable) for f in one.factors] == [
            (f.side, f.max_shards, f.usable) for f in other.factors
        ]
    assert roles(remat, 1) == ["forward"] * 5 + ["gradient"] * 10 + ["rematerialised"] * 5


@pytest.mark.parametrize("name", ["llama, scan", "llama, scan, remat"])
def test_a_scanned_layer_is_four_blocks_with_their_gradients(name: str):
    blocks = model_blocks(name, 3)
    assert [block.loop for block in blocks.blocks] == [None, 0, None]
    (loop,) = blocks.loops
    assert loop.iteration.trip_count == 3
    assert len(loop.iteration.loops) == 2
    assert forward_counts(loop.blocks) == [5, 1, 2, 1]
    assert [roles(loop.blocks, i).count("gradient") for i in range(4)] == [10, 2, 4, 2]


def test_the_blocks_of_a_scan_do_not_depend_on_the_number_of_layers():
    few, many = model_blocks("llama, scan", 3), model_blocks("llama, scan", 6)
    assert [len(each.graph.ops) for each in with_loops(few)] == [len(each.graph.ops) for each in with_loops(many)]
    assert [each.block_of_op for each in with_loops(few)] == [each.block_of_op for each in with_loops(many)]


def test_a_norm_goes_with_the_projection_behind_it_and_an_optimizer_with_its_gradient():
    blocks = model_blocks("llama", 2)
    graph = blocks.graph
    mlp_up = blocks.blocks[3]
    assert "stablehlo.rsqrt" in {graph.ops[op].name for op in mlp_up.glue}
    # Parameter 3 is the first layer's projection down, of which block 4 computes the gradient.
    (weight,) = [value for value in graph.values if value.op is None and value.position == 3]
    (update,) = [user for user in weight.users if graph.ops[user].name == "stablehlo.subtract"]
    assert blocks.block_of_op[update] == 4


def test_a_block_knows_the_parameters_that_reach_it_through_the_barriers_of_a_recomputation():
    plain, remat = model_blocks("llama", 2), model_blocks("llama, remat", 2)
    for index in (2, 3, 6, 7):
        assert set(plain.blocks[index].parameters) == set(remat.blocks[index].parameters)


def test_a_residual_that_descends_from_the_entry_is_not_taken():
    def normalised(x: jax.Array, w: jax.Array) -> jax.Array:
        y = x @ w
        return y - jnp.mean(y, axis=-1, keepdims=True)

    blocks = blocks_of(normalised, X, W)
    names = [blocks.graph.ops[op].name for op in blocks.blocks[0].members]
    assert names == ["stablehlo.dot_general"]


def test_a_residual_from_before_the_entry_is_taken():
    blocks = blocks_of(lambda x, w: x @ w + x, X, W)
    names = [blocks.graph.ops[op].name for op in blocks.blocks[0].members]
    assert names == ["stablehlo.dot_general", "stablehlo.add"]


def test_a_value_that_two_members_need_split_differently_cannot_be_split():
    blocks = blocks_of(lambda x, w: x @ w + jnp.swapaxes(x, 0, 1), jax.ShapeDtypeStruct((8, 8, 16), jnp.float32), W)
    alone = blocks_of(lambda x, w: x @ w, jax.ShapeDtypeStruct((8, 8, 16), jnp.float32), W)
    assert len(alone.blocks[0].usable_factors) == 4
    assert blocks.blocks[0].usable_factors == alone.blocks[0].usable_factors

    def gram(x: jax.Array) -> jax.Array:
        return jnp.einsum("bqd,bkd->bqk", x, x)

    product = blocks_of(gram, X)
    assert [factor.side for factor in product.blocks[0].usable_factors] == [Side.BATCH, Side.REDUCTION]


def test_the_outputs_of_a_block_say_which_dim_each_live_factor_splits():
    blocks = blocks_of(lambda x, w: jnp.tanh(x @ w).reshape(4, 8, 4, 4).swapaxes(1, 2), X, W)
    (block,) = blocks.blocks
    (output,) = block.outputs
    sides = {dim: block.factors[factor].side for dim, factor in output.dims}
    assert blocks.graph.shape(output.value) == (4, 4, 8, 4)
    assert sides == {0: Side.LEFT, 2: Side.LEFT, 1: Side.RIGHT}
    assert [factor.max_shards for factor in block.usable_factors if factor.side is Side.RIGHT] == [4]


def test_a_convolution_takes_its_activation_and_stops_at_a_batch_norm():
    blocks = model_blocks("conv", 2)
    assert all(block.factors[0].max_shards == 16 for block in blocks.blocks)
    for block in blocks.blocks:
        names = [blocks.graph.ops[op].name for op in block.members]
        assert names[0] == "stablehlo.convolution"
        assert "stablehlo.reduce" not in names


def test_a_program_without_contractions_is_one_block_without_entries():
    blocks = blocks_of(lambda x: jnp.tanh(x) + 1.0, X)
    (block,) = blocks.blocks
    assert block.entries == block.factors == ()
    assert len(block.glue) == 2


def test_equal_programs_have_equal_blocks():
    bytecode = model_bytecode("gpt", 2)
    assert find_blocks(read_graph(bytecode)) == find_blocks(read_graph(bytecode))


def test_the_number_of_blocks_of_a_deep_chain_is_its_depth():
    def chain(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return x

    blocks = find_blocks(graph_of(chain, X, [W] * 30))
    assert len(blocks.blocks) == 30
    assert all(len(block.members) == 2 for block in blocks.blocks)


def test_each_update_is_in_the_block_of_its_gradient_though_a_global_norm_scales_them_all():
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    def step(weights: list[jax.Array], state: optax.OptState, x: jax.Array) -> Any:
        def loss(weights: list[jax.Array]) -> jax.Array:
            y = x
            for weight in weights:
                y = jnp.tanh(y @ weight)
            return jnp.mean(y**2)

        updates, state = optimizer.update(jax.grad(loss)(weights), state, weights)
        return optax.apply_updates(weights, updates), state

    weights = [W] * 3
    blocks = blocks_of(step, weights, jax.eval_shape(optimizer.init, weights), X)
    # Three weights, the step counter, three first and three second moments, the input.
    assert [set(block.parameters) - {3, 10} for block in blocks.blocks] == [{0, 4, 7}, {1, 5, 8}, {2, 6, 9}]
