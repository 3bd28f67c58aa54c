"""A program that computes parts of its forward pass again gives the same values and needs less memory."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_cfp.analysis.blocks import Blocks, find_blocks
from alpa_cfp.analysis.forward_parts import forward_parts
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.apply.recompute import recompute
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition.xla import leave_to_xla
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.recomputation import Recomputation
from unit.alpa_cfp.spmd.helpers import annotate, load, lower, run

pytestmark = pytest.mark.slow

LAYERS, WIDTH, SAMPLES = 6, 16, 64
KINDS = ("plain", "dropout", "norm", "checkpoint", "attention", "lookup")


def layer(kind: str, x: jax.Array, up: jax.Array, down: jax.Array, key: jax.Array) -> jax.Array:
    if kind == "norm":
        x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    hidden = jax.nn.gelu(x @ up)
    if kind == "dropout":
        hidden = jnp.where(jax.random.bernoulli(key, 0.8, hidden.shape), hidden / 0.8, 0.0)
    if kind == "attention":
        hidden = jax.nn.softmax(hidden @ hidden.T) @ hidden
    if kind == "lookup":
        hidden = hidden[jnp.argsort(hidden[:, 0])]
    return x + hidden @ down


@cache
def program(kind: str) -> tuple[HloModule, Blocks, tuple[np.ndarray, ...]]:
    """A training step, its blocks and its arguments."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape) / 4 for _ in range(LAYERS) for shape in ((WIDTH, 64), (64, WIDTH))]

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for number, (up, down) in enumerate(zip(weights[::2], weights[1::2], strict=True)):
            own = jax.checkpoint(layer, static_argnums=0) if kind == "checkpoint" else layer
            x = own(kind, x, up, down, jax.random.fold_in(jax.random.key(7), number))
        return (x**2).mean()

    def step(x: jax.Array, *weights: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return (value, *(w - 0.1 * g for w, g in zip(weights, gradients, strict=True)))

    arguments = tuple(each.astype(np.float32) for each in (rng.standard_normal((SAMPLES, WIDTH)), *weights))
    module = lower(step, arguments)
    return module, find_blocks(read_graph(module.bytecode)), arguments


def values_of(module: HloModule, arguments: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    annotate(module, LogicalMesh((1,)))
    return [np.asarray(value) for value in run(module, leave_to_xla(module, "one device"), arguments)]


@cache
def expected(kind: str) -> list[np.ndarray]:
    module, _, arguments = program(kind)
    return values_of(replace(module), arguments)


@given(
    kind=st.sampled_from(KINDS),
    numbers=st.sets(st.integers(0, LAYERS)),
    keeps_products=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_whatever_is_computed_again_the_values_are_the_same(kind: str, numbers: set[int], keeps_products: bool) -> None:
    module, blocks, arguments = program(kind)
    again = recompute(module, blocks, Recomputation(tuple(sorted(numbers)), keeps_products))
    for found, value in zip(values_of(again, arguments), expected(kind), strict=True):
        # The compiler may fuse otherwise: less than that of the largest entry is rounding.
        np.testing.assert_allclose(found, value, rtol=0, atol=1e-5 * np.abs(value).max())


def count(module: HloModule, name: str) -> int:
    return sum(op.name == name for op in read_graph(module.bytecode).ops)


def test_products_are_made_twice_unless_they_are_kept() -> None:
    module, blocks, _ = program("plain")
    every = tuple(range(len(forward_parts(blocks)) - 1))
    before = count(module, "stablehlo.dot_general")
    kept, again = (recompute(module, blocks, Recomputation(every, keeps)) for keeps in (True, False))
    assert count(kept, "stablehlo.dot_general") == before
    assert count(again, "stablehlo.dot_general") > before
    assert count(kept, "stablehlo.tanh") > count(module, "stablehlo.tanh")


def test_the_given_module_is_not_changed_and_the_same_is_made_each_time() -> None:
    module, blocks, _ = program("norm")
    before = module.bytecode
    first, second = (recompute(module, blocks, Recomputation((0, 1), keeps_products=False)) for _ in range(2))
    assert module.bytecode == before
    assert first.bytecode == second.bytecode != before


def test_parts_that_there_are_not_change_nothing() -> None:
    module, blocks, _ = program("plain")
    again = recompute(module, blocks, Recomputation((99,), keeps_products=False))
    assert count(again, "stablehlo.dot_general") == count(module, "stablehlo.dot_general")


@pytest.mark.parametrize("keeps_products", [True, False])
def test_a_compiled_program_needs_less_memory(keeps_products: bool) -> None:
    module, blocks, _ = program("plain")
    every = tuple(range(len(forward_parts(blocks)) - 1))

    def temporary_bytes(module: HloModule) -> int:
        annotate(module, LogicalMesh((1,)))
        return load(module, leave_to_xla(module, "one device")).memory_bytes()["temporaries"]

    before = temporary_bytes(replace(module))
    after = temporary_bytes(recompute(module, blocks, Recomputation(every, keeps_products)))
    assert after < 0.75 * before
