"""Loops of known length are taken apart: the same values, no loop left, and layers that see each other directly."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from alpa_cfp.plain import unrolling
from alpa_cfp.plain.tracing import trace

# Small, so that tanh does not saturate and gradients have the size of what they are summed from.
X = jnp.sin(jnp.arange(12.0)).reshape(3, 4) / 2
WEIGHTS = jnp.cos(jnp.arange(64.0)).reshape(4, 4, 4) / 2


def unrolled(fn: Callable[..., Any], *args: Any, max_equations: int = unrolling.MAX_EQUATIONS) -> Any:
    """The closed jaxpr of `fn` with its loops taken apart."""
    closed = jax.make_jaxpr(fn)(*args)
    return jax.make_jaxpr(lambda *leaves: unrolling.evaluate(closed, leaves, max_equations))(*jax.tree.leaves(args))


def primitives(jaxpr: Any) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in unrolling.inner_jaxprs(eqn):
            yield from primitives(inner)


def counted(fn: Callable[..., Any], *args: Any) -> Counter[str]:
    return Counter(primitives(unrolled(fn, *args).jaxpr))


def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.tanh(x @ weight), jnp.sum(x)


def scanned(weights: jax.Array, x: jax.Array) -> jax.Array:
    result, sums = lax.scan(layer, x, weights)
    return jnp.sum(result**2) + jnp.max(sums)


def assert_same(fn: Callable[..., Any], *args: Any) -> None:
    closed = unrolled(fn, *args)
    actual = jax.jit(jax.extend.core.jaxpr_as_fun(closed))(*jax.tree.leaves(args))
    for got, wanted in zip(actual, jax.tree.leaves(jax.jit(fn)(*args)), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * np.max(np.abs(wanted), initial=0))


@given(st.integers(0, 4), st.booleans(), st.booleans(), st.booleans())
def test_a_scan_gives_what_it_gave(length: int, reverse: bool, with_slices: bool, with_results: bool) -> None:
    def fn(weights: jax.Array, x: jax.Array) -> Any:
        def body(carry: Any, weight: Any) -> Any:
            (value, number) = carry
            value = jnp.tanh(value @ weight) if with_slices else value * 2
            return (value, number + 1), (value[0], number) if with_results else None

        slices = weights[:length] if with_slices else None
        return lax.scan(body, (x, 0), slices, length=length, reverse=reverse)

    assert_same(fn, WEIGHTS, X)
    assert length == 0 or "scan" not in counted(fn, WEIGHTS, X)


@pytest.mark.parametrize("remat", [False, True])
def test_a_differentiated_scan_gives_what_it_gave(remat: bool) -> None:
    body = jax.checkpoint(layer, prevent_cse=False) if remat else layer

    def fn(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(lax.scan(body, x, weights)[0] ** 2)

    assert_same(jax.value_and_grad(fn, argnums=(0, 1)), WEIGHTS, X)


@pytest.mark.parametrize(
    "fn",
    [
        lambda weights, x: lax.fori_loop(0, 3, lambda i, y: y * 0.9 + i, x),
        lambda weights, x: lax.map(lambda row: jnp.tanh(row @ weights[0]), x),
        lambda weights, x: lax.scan(lambda y, _: lax.scan(layer, y, weights), x, None, length=2),
        lambda weights, x: jax.jit(lambda y: lax.scan(layer, y, weights))(x),
        lambda weights, x: jax.vmap(lambda row: lax.scan(layer, row, weights))(x),
        jax.grad(lambda weights, x: jax.checkpoint(scanned)(weights, x)),
        jax.grad(lambda weights, x: jax.checkpoint(lambda w: scanned(w, x) + scanned(w, x))(weights)),
    ],
    ids=["fori_loop", "map", "nested", "jit", "vmap", "remat", "remat_twice"],
)
def test_every_loop_of_known_length_is_taken_apart(fn: Callable[..., Any]) -> None:
    assert_same(fn, WEIGHTS, X)
    assert not {"scan", "while"} & set(counted(fn, WEIGHTS, X))


def test_a_custom_derivative_around_a_loop_is_gone_with_the_loop() -> None:
    @jax.custom_vjp
    def fn(weights: jax.Array, x: jax.Array) -> jax.Array:
        return scanned(weights, x)

    fn.defvjp(lambda weights, x: (fn(weights, x), x), lambda x, grad: (jnp.zeros_like(WEIGHTS), grad * x))
    assert_same(lambda weights, x: fn(weights, x) * 2, WEIGHTS, X)
    assert "custom_vjp_call" not in counted(lambda weights, x: fn(weights, x) * 2, WEIGHTS, X)


def test_what_the_forward_loop_keeps_reaches_the_backward_one_without_being_stacked() -> None:
    found = counted(jax.grad(lambda weights, x: jnp.sum(lax.scan(layer, x, weights)[0])), WEIGHTS, X)
    assert found["concatenate"] == 1  # the gradients of the stacked weights
    # A layer's weight is taken out of the stack once, for forward and backward.
    assert found["dynamic_slice"] + found["slice"] == len(WEIGHTS)


def test_what_is_recomputed_in_a_loop_stays_apart_from_what_it_repeats() -> None:
    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(lax.scan(jax.checkpoint(layer, prevent_cse=False), x, weights)[0])

    abstract = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (WEIGHTS, X)]
    module = trace(jax.grad(loss), abstract, {}, (), "cpu").module
    assert module.to_string().count("stablehlo.optimization_barrier") == len(WEIGHTS)


def test_a_loop_that_would_become_too_long_stays_and_so_does_one_of_unknown_length() -> None:
    def fn(weights: jax.Array, x: jax.Array) -> Any:
        long = lax.fori_loop(0, 1000, lambda i, y: y * 0.9 + i, x)
        return long, lax.scan(layer, x, weights), lax.while_loop(lambda y: jnp.max(y) > 0.1, lambda y: y / 2, x)

    assert unrolling.find_loops(jax.make_jaxpr(fn)(WEIGHTS, X), 500) == unrolling.Loops(1, 1, 1)
    closed = unrolled(fn, WEIGHTS, X, max_equations=500)
    found = Counter(primitives(closed.jaxpr))
    assert (found["scan"], found["while"]) == (1, 1)


def test_a_loop_that_stays_is_warned_of(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unrolling, "MAX_EQUATIONS", 500)

    def fn(x: jax.Array) -> Any:
        long = lax.fori_loop(0, 1000, lambda i, y: y * 0.9 + i, x)
        return lax.while_loop(lambda y: jnp.max(y) > 0.1, lambda y: y / 2, long)

    with caplog.at_level(logging.WARNING, logger="alpa_cfp"):
        trace(fn, [X], {}, (), "cpu")
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "whose length depends on values" in messages[0]
    assert "more than 500 operations" in messages[1]
