"""A program that computes parts of its forward pass again gives what it gave, and needs less memory."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.analysis.recomputation import Repeat, find_units
from alpa_cfp.extraction.repeats_in_backward import with_repeats
from alpa_cfp.spmd.compile import backend
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.step_barriers import REPEAT
from alpa_cfp.spmd.module.hlo_module import HloModule
from unit.alpa_cfp.spmd.helpers import lower

WIDTH, ROWS = 16, 32
Layer = Callable[[Any, Any, Any, Any], Any]


def dense(w: Any, x: Any, first: Any, key: Any) -> Any:
    return jnp.tanh(x @ w)


def normalised(w: Any, x: Any, first: Any, key: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return x + jax.nn.gelu(centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-3) @ w) @ w.T


def attention(w: Any, x: Any, first: Any, key: Any) -> Any:
    return x + jax.nn.softmax((x @ w) @ x.T) @ x @ w.T


def dropout(w: Any, x: Any, first: Any, key: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.7, x.shape), jax.nn.gelu(x @ w), 0.0)


def skip(w: Any, x: Any, first: Any, key: Any) -> Any:
    return jnp.sin(x @ w) + first


LAYERS: tuple[Layer, ...] = (dense, normalised, attention, dropout, skip)


def step_of(layers: Sequence[Layer]) -> Callable[..., Any]:
    """(weights, x, key) -> (new weights, the loss, the mean of what the first layer gives)."""

    def loss(weights: Any, x: Any, key: Any) -> Any:
        first = out = layers[0](weights[0], x, x, key)
        for layer, w, own in zip(layers[1:], weights[1:], jax.random.split(key, len(layers)), strict=False):
            out = layer(w, out, first, own)
        return jnp.mean((out - 1) ** 2), first.mean()

    def step(weights: Any, x: Any, bits: Any) -> Any:
        key = jax.random.wrap_key_data(bits)
        (value, mean), gradients = jax.value_and_grad(loss, has_aux=True)(weights, x, key)
        return [w - 0.1 * each for w, each in zip(weights, gradients, strict=True)], value, mean

    return step


def arguments(layers: int, rows: int = ROWS) -> tuple[Any, ...]:
    drawn = np.random.default_rng(0)
    weights = [drawn.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 4 for _ in range(layers)]
    return weights, drawn.normal(size=(rows, WIDTH)).astype(np.float32), np.array([1, 2], np.uint32)


@cache
def lowered(layers: tuple[Layer, ...], rows: int = ROWS) -> HloModule:
    return lower(step_of(layers), arguments(len(layers), rows))


@cache
def loaded(module_bytecode: bytes) -> Any:
    return backend.compile_and_load(module_bytecode, (jax.devices()[0],), one_program_per_device=True)


def values(module: HloModule, args: Any) -> list[np.ndarray]:
    on = NamedSharding(Mesh(jax.devices()[:1], ("x",)), PartitionSpec())
    handlers = [backend.array_handler(shape.dims, shape.dtype, on) for shape in module.shape.results]
    placed = [jax.device_put(each, on) for each in jax.tree.leaves(args)]
    return [np.asarray(each) for each in backend.execute(loaded(module.bytecode), placed, handlers)]


def repeats_of(module: HloModule, *, keeps_products: bool) -> list[Repeat]:
    found = find_units(find_blocks(read_graph(module.bytecode)))
    return [each for unit in found if (each := unit.repeat(keeps_products=keeps_products)) is not None]


def temporary_bytes(module: HloModule) -> int:
    return loaded(module.bytecode).get_compiled_memory_stats().temp_size_in_bytes


@given(st.data())
@settings(max_examples=12)
def test_results_are_equal_whatever_is_computed_again(data: Any) -> None:
    layers = tuple(data.draw(st.lists(st.sampled_from(LAYERS), min_size=3, max_size=6)))
    module = lowered(layers)
    units = find_units(find_blocks(read_graph(module.bytecode)))
    repeats = [data.draw(st.sampled_from((None, unit.whole, unit.without_products))) for unit in units]
    again = with_repeats(module, [repeat for repeat in repeats if repeat is not None])
    with mlir.context():
        assert mlir.parse(again.bytecode).operation.verify()
    for old, new in zip(*(values(each, arguments(len(layers))) for each in (module, again)), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("keeps_products", [False, True])
def test_what_dropout_draws_is_drawn_again_from_the_same_key(keeps_products: bool) -> None:
    module = lowered((dropout,) * 5)
    again = with_repeats(module, repeats_of(module, keeps_products=keeps_products))
    assert REPEAT.encode() in again.bytecode
    for old, new in zip(*(values(each, arguments(5)) for each in (module, again)), strict=True):
        np.testing.assert_array_equal(new != 0, old != 0)
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-7)


def test_the_compiled_program_needs_less_memory_the_more_is_computed_again() -> None:
    module = lowered((normalised,) * 8, 4096)
    repeats = repeats_of(module, keeps_products=False)
    forms = [module, with_repeats(module, repeats[: len(repeats) // 2]), with_repeats(module, repeats)]
    none, half, whole = map(temporary_bytes, forms)
    assert whole < 0.5 * none
    assert whole < half < none


def test_less_is_freed_and_fewer_operations_are_made_if_products_are_kept() -> None:
    module = lowered((normalised,) * 8)
    whole, kept = (repeats_of(module, keeps_products=each) for each in (False, True))
    assert sum(each.freed_bytes for each in kept) < sum(each.freed_bytes for each in whole)
    assert not any(each.flops for each in kept)
    assert all(each.flops for each in whole)


def test_a_program_is_written_alike_each_time() -> None:
    module = lowered((attention, normalised, dense, dense))
    first, second = (with_repeats(module, repeats_of(module, keeps_products=False)) for _ in range(2))
    assert first.bytecode == second.bytecode != module.bytecode


def test_without_repeats_a_program_is_the_same() -> None:
    module = lowered((dense, dense, dense))
    assert with_repeats(module, []) is module
