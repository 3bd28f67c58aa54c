"""The units of a forward pass: what may be computed again, and what it then needs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alpa_cfp.analysis.backward import backward_start
from alpa_cfp.analysis.blocks import Blocks, find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.analysis.recomputation import find_units
from unit.alpa_cfp.analysis.programs import model_blocks
from unit.alpa_cfp.spmd.helpers import lower

LAYERS = 6
SQUARE = np.ones((16, 16), np.float32)


def blocks_of(function: Any, count: int) -> Blocks:
    return find_blocks(read_graph(lower(function, (SQUARE,) * count).bytecode))


def chain(checkpointed: bool = False) -> Any:
    def layer(w: Any, x: Any) -> Any:
        return jnp.sin(jnp.tanh(x @ w) @ w)

    own = jax.checkpoint(layer) if checkpointed else layer

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = own(w, x)
        return jnp.mean(x**2)

    return lambda x, *weights: jax.grad(loss)(weights, x)


def test_equal_layers_are_units_that_free_as_much_as_each_other() -> None:
    units = find_units(model_blocks("gpt", LAYERS))
    layers = [unit for unit in units if unit.whole.flops]
    assert len(layers) == LAYERS - 1  # the backward pass of the last one comes next
    assert len({(each.whole.freed_bytes, each.whole.flops, len(each.whole.inputs)) for each in layers[1:]}) == 1
    assert [each.blocks for each in layers] == sorted(each.blocks for each in layers)


def test_no_op_is_in_two_units_and_all_are_in_the_forward_pass() -> None:
    blocks = model_blocks("llama", LAYERS)
    ops = [op for unit in find_units(blocks) for op in unit.whole.ops]
    assert len(ops) == len(set(ops))
    assert max(ops) < backward_start(blocks)


def test_a_unit_is_computed_from_what_was_there_before_it_and_waits_for_a_gradient() -> None:
    blocks = model_blocks("gpt", LAYERS)
    for unit in find_units(blocks):
        for repeat in filter(None, (unit.whole, unit.without_products)):
            made = {value for op in repeat.ops for value in blocks.graph.ops[op].results}
            assert made.isdisjoint(repeat.inputs)
            producer = blocks.graph.values[repeat.gradient].op
            assert producer is not None
            assert backward_start(blocks) <= producer < repeat.first_user


def test_without_its_products_a_unit_makes_no_operations() -> None:
    for unit in find_units(model_blocks("gpt", LAYERS)):
        assert unit.without_products is not None
        assert unit.without_products.flops == 0
        assert unit.without_products.freed_bytes <= unit.whole.freed_bytes


def test_a_program_without_a_backward_pass_has_no_units() -> None:
    assert find_units(blocks_of(lambda x, w: jnp.tanh(x @ w) @ w, 2)) == ()


def test_what_jax_checkpoint_recomputes_is_no_unit() -> None:
    assert find_units(blocks_of(chain(), 6))
    assert find_units(blocks_of(chain(checkpointed=True), 6)) == ()


def test_a_model_that_repeats_little_is_cut_where_it_is_narrow() -> None:
    assert len(find_units(model_blocks("wide_resnet"))) >= 3


def test_a_random_op_that_would_draw_other_numbers_is_kept() -> None:
    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = jnp.sin(jnp.tanh(x @ w) * jax.lax.rng_uniform(0.0, 1.0, x.shape))
        return jnp.mean(x**2)

    blocks = blocks_of(lambda x, *weights: jax.grad(loss)(weights, x), 6)
    units = find_units(blocks)
    assert units
    for unit in units:
        assert all(blocks.graph.ops[op].name != "stablehlo.rng" for op in unit.whole.ops)
