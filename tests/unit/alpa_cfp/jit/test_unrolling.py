"""Loops of known length in which there is something to plan are taken apart: the same values, no loop left, and layers
that see each other directly."""

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
from jax.extend import core

from alpa_cfp.jit import unrolling
from alpa_cfp.jit.tracing import trace
from alpa_cfp.spmd.ir.step_barriers import STEP

pytestmark = pytest.mark.slow

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
        for inner in core.jaxprs_in_params(eqn.params):
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
    actual = jax.jit(core.jaxpr_as_fun(closed))(*jax.tree.leaves(args))
    for got, wanted in zip(actual, jax.tree.leaves(jax.jit(fn)(*args)), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * np.max(np.abs(wanted), initial=0))


@given(st.integers(0, 4), st.booleans(), st.booleans(), st.booleans())
def test_a_scan_gives_what_it_gave(length: int, reverse: bool, with_slices: bool, with_results: bool) -> None:
    def fn(weights: jax.Array, x: jax.Array) -> Any:
        def body(carry: Any, weight: Any) -> Any:
            (value, number) = carry
            value = jnp.tanh(value @ (weight if with_slices else weights[0]))
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
        lambda weights, x: lax.fori_loop(0, 3, lambda i, y: y @ weights[i] + i, x),
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
    lines = [line for line in module.to_string().splitlines() if "stablehlo.optimization_barrier" in line]
    assert sum(STEP not in line for line in lines) == len(WEIGHTS)


def cumulative(x: jax.Array) -> jax.Array:
    """A recurrence in which there is nothing to plan."""
    return lax.scan(lambda carry, row: (jnp.sin(carry) + row, carry), jnp.zeros(4), x)[1]


def test_a_loop_in_which_there_is_nothing_to_plan_stays_and_the_plan_says_so() -> None:
    def fn(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(cumulative(x) @ weights[0])

    closed = jax.make_jaxpr(jax.value_and_grad(fn))(WEIGHTS, X)
    assert unrolling.find_loops(closed, 500) == unrolling.Loops(0, 1, 0, 0)  # no gradient goes through it
    assert unrolling.find_loops(jax.make_jaxpr(jax.grad(fn, 1))(WEIGHTS, X), 500).unplanned == 2
    assert_same(jax.value_and_grad(fn, (0, 1)), WEIGHTS, X)
    (caveat,) = trace(fn, [WEIGHTS, X], {}, (), "cpu").caveats
    assert caveat.text == "1 loops stay loops: there is nothing in them to plan"
    assert not caveat.may_cost


def test_a_loop_with_contractions_too_small_to_be_planned_stays() -> None:
    def fn(weights: jax.Array, x: jax.Array) -> Any:
        small, _ = lax.scan(layer, x, weights)
        return small, jnp.ones((100, 100)) @ jnp.ones((100, 100))

    assert unrolling.find_loops(jax.make_jaxpr(fn)(WEIGHTS, X), 500) == unrolling.Loops(0, 1, 0, 0)
    assert_same(fn, WEIGHTS, X)


def test_a_loop_that_takes_rows_out_of_a_table_is_taken_apart() -> None:
    def fn(table: jax.Array, tokens: jax.Array) -> jax.Array:
        return lax.scan(lambda carry, row: (carry + table[row], None), jnp.zeros((3, 4)), tokens)[0]

    table, tokens = WEIGHTS[0], jnp.arange(6).reshape(2, 3) % 4
    assert "scan" not in counted(fn, table, tokens)
    gradient = jax.grad(lambda table: jnp.sum(fn(table, tokens) ** 2))
    assert "scan" not in counted(gradient, table)
    assert_same(gradient, table)


def test_a_loop_in_a_branch_of_a_condition_stays_since_nothing_is_planned_there() -> None:
    def fn(weights: jax.Array, x: jax.Array) -> jax.Array:
        return lax.cond(jnp.sum(x) > 0, lambda x: lax.scan(layer, x, weights)[0], lambda x: x, x)

    def outer(weights: jax.Array, x: jax.Array) -> jax.Array:
        return lax.scan(lambda x, _: (fn(weights, x), None), x, length=2)[0]

    for each in (fn, outer):
        assert unrolling.find_loops(jax.make_jaxpr(each)(WEIGHTS, X), 500) == unrolling.Loops(0, 1, 0, 0)
        assert_same(each, WEIGHTS, X)


@pytest.mark.parametrize("planned_first", [True, False])
def test_what_crosses_between_a_loop_that_stays_and_one_that_is_taken_apart_is_the_same(planned_first: bool) -> None:
    def fn(weights: jax.Array, x: jax.Array) -> jax.Array:
        def products(rows: jax.Array) -> jax.Array:
            return lax.scan(lambda carry, row: (jnp.tanh(carry @ weights[0] + row), carry), jnp.ones(4), rows)[1]

        first, second = (products, cumulative) if planned_first else (cumulative, products)
        return jnp.sum(second(first(x)) ** 2)

    assert_same(jax.value_and_grad(fn, (0, 1)), WEIGHTS, X)
    found = counted(jax.value_and_grad(fn, (0, 1)), WEIGHTS, X)
    assert found["scan"] == 2  # forward and backward


def step_barriers(fn: Callable[..., Any], *args: Any) -> int:
    return counted(fn, *args)["step_barrier"]


def test_steps_are_kept_apart_by_a_barrier_on_what_is_computed_from_step_to_step() -> None:
    assert step_barriers(scanned, WEIGHTS, X) == len(WEIGHTS)
    backward = jax.grad(scanned, 1)
    assert step_barriers(backward, WEIGHTS, X) == 2 * len(WEIGHTS)
    remat = jax.grad(lambda weights, x: jnp.sum(lax.scan(jax.checkpoint(layer), x, weights)[0]), 1)
    assert step_barriers(remat, WEIGHTS, X) == 2 * len(WEIGHTS)


@pytest.mark.parametrize("called", [lambda body: body, jax.jit, jax.checkpoint], ids=["plain", "jit", "remat"])
def test_what_is_only_counted_summed_or_handed_on_from_step_to_step_has_no_barrier(called: Any) -> None:
    def fn(weights: jax.Array, x: jax.Array) -> Any:
        def body(carry: Any, weight: jax.Array) -> Any:
            number, total, (first, second) = carry
            return (number + 1, total + x @ weight * number, (second, first)), None

        return lax.scan(called(body), (0, jnp.zeros((3, 4)), (x, x + 1)), weights)[0]

    assert step_barriers(fn, WEIGHTS, X) == 0
    assert_same(fn, WEIGHTS, X)


def test_random_keys_and_stacks_that_are_carried_pass_barriers() -> None:
    def fn(weights: jax.Array, x: jax.Array) -> Any:
        _, stack = lax.scan(lambda carry, weight: (jnp.tanh(carry @ weight), carry), x, weights)

        def body(carry: Any, _: None) -> Any:
            key, stack = carry
            key, mine = jax.random.split(key)
            return (key, jnp.tanh(stack @ weights[0]) + jax.random.normal(mine, (4,))), None

        return lax.scan(body, (jax.random.key(0), stack), None, length=3)[0][1]

    # Of the first loop, of the keys, and of the stack, which the first step gets in four parts.
    assert step_barriers(fn, WEIGHTS, X) == 4 + 3 + (4 + 1 + 1)
    assert_same(fn, WEIGHTS, X)


def test_a_loop_that_would_become_too_long_stays_and_so_does_one_of_unknown_length() -> None:
    def fn(weights: jax.Array, x: jax.Array) -> Any:
        long = lax.fori_loop(0, 1000, lambda i, y: y @ weights[0] + i, x)
        return long, lax.scan(layer, x, weights), lax.while_loop(lambda y: jnp.max(y) > 0.1, lambda y: y / 2, x)

    assert unrolling.find_loops(jax.make_jaxpr(fn)(WEIGHTS, X), 500) == unrolling.Loops(1, 0, 1, 1)
    closed = unrolled(fn, WEIGHTS, X, max_equations=500)
    found = Counter(primitives(closed.jaxpr))
    assert (found["scan"], found["while"]) == (1, 1)


@pytest.mark.parametrize(("most", "least", "stays"), [(8, 43, True), (9, 43, False), (8, 42, False)])
def test_a_loop_that_would_become_many_equations_that_compute_little_stays(
    most: int, least: int, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unrolling, "MANY_EQUATIONS", most)
    monkeypatch.setattr(unrolling, "LEAST_PER_EQUATION", least)

    def fn(weights: jax.Array, x: jax.Array) -> jax.Array:
        """Two equations a layer, of which one multiplies 6 x 4 x 4 times, and another one before."""
        return lax.scan(lambda y, weight: (jnp.tanh(y @ weight), None), jnp.concatenate([x, x]), weights)[0]

    program = trace(fn, [WEIGHTS, X], {}, (), "cpu")
    assert program.unrolled == (not stays)
    texts = [caveat.text for caveat in program.caveats]
    assert texts == ["1 loops stay loops: unrolled they would be very many small operations"] * stays
    assert_same(fn, WEIGHTS, X)


def test_a_loop_that_stays_is_warned_of(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unrolling, "MAX_EQUATIONS", 500)

    def fn(weights: jax.Array, x: jax.Array) -> Any:
        long = lax.scan(layer, x, jnp.tile(weights, (250, 1, 1)))[0]
        return lax.while_loop(lambda y: jnp.max(y) > 0.1, lambda y: y / 2, long)

    with caplog.at_level(logging.WARNING, logger="alpa_cfp"):
        trace(fn, [WEIGHTS, X], {}, (), "cpu")
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "whose length depends on values" in messages[0]
    assert "more than 500 operations" in messages[1]
