"""A scan that multiplies its state with weights that all steps share stays a loop, which is split."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from jax import lax

from alpa_cfp.jit import recurrences
from alpa_cfp.jit.jaxprs import SCAN, all_equations
from alpa_cfp.jit.recurrences import is_recurrence
from alpa_cfp.jit.tracing import TracedFunction, trace

STATE, WEIGHTS, ROWS = jnp.ones((4, 8)), jnp.ones((8, 8)), jnp.ones((6, 4, 8))


def plain(weights: jax.Array, rows: jax.Array) -> jax.Array:
    return lax.scan(lambda h, row: (jnp.tanh(h @ weights + row), h), STATE, rows)[1].sum()


def called(weights: jax.Array, rows: jax.Array) -> jax.Array:
    step = jax.jit(lambda h, row: jnp.tanh(jnp.dot(h, weights.T.astype(h.dtype)) + row))
    return lax.scan(jax.checkpoint(lambda h, row: (step(h, row), h)), STATE, rows)[1].sum()


def lstm(weights: jax.Array, rows: jax.Array) -> jax.Array:
    cell = nn.RNN(nn.OptimizedLSTMCell(8))
    batch = jnp.swapaxes(rows, 0, 1)
    parameters = cell.init(jax.random.key(0), batch)
    return cell.apply(jax.tree.map(lambda leaf: leaf + weights[0, 0], parameters), batch).sum()  # type: ignore[union-attr]


def layers(weights: jax.Array, rows: jax.Array) -> jax.Array:
    """Each step has weights of its own."""
    own = jnp.broadcast_to(weights, (6, 8, 8))
    return lax.scan(lambda h, each: (jnp.tanh(h @ each), None), STATE, own)[0].sum() + rows.sum()


def micro_batches(weights: jax.Array, rows: jax.Array) -> jax.Array:
    """The state is a sum, with which nothing is multiplied."""
    return lax.scan(lambda total, row: (total + jnp.sum(jnp.tanh(row @ weights)), None), jnp.zeros(()), rows)[0]


def counted(weights: jax.Array, rows: jax.Array) -> jax.Array:
    """The number of the step is no state, and neither is a random key."""

    def step(number: int, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        key, total = carry
        noise = jax.random.normal(key, rows[0].shape)
        return jax.random.split(key)[0], total + jnp.sum(jnp.tanh((rows[number] + noise) @ weights))

    return lax.fori_loop(0, 6, step, (jax.random.PRNGKey(0), jnp.zeros(())))[1]


def rotated(weights: jax.Array, rows: jax.Array) -> jax.Array:
    """What layers share is a small part of what they compute."""
    own, turn = jnp.broadcast_to(jnp.tile(weights, (1, 4)), (6, 8, 32)), jnp.eye(8) + weights[0, 0]
    layer = lax.scan(lambda h, each: (jnp.tanh((h @ turn) @ each) @ each.T, None), STATE, own)[0]
    return layer.sum() + rows.sum()


def constrained(weights: jax.Array, rows: jax.Array) -> jax.Array:
    """The program says itself where the state lies."""
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def step(h: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
        return lax.with_sharding_constraint(jnp.tanh(h @ weights + row), device), None

    return lax.scan(step, STATE, rows)[0].sum()


def inner_call(weights: jax.Array, rows: jax.Array) -> jax.Array:
    """An inner call says where the state lies."""
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    step = jax.jit(lambda h, row: jnp.tanh(h @ weights + row), out_shardings=device)
    return lax.scan(lambda h, row: (step(h, row), None), STATE, rows)[0].sum()


def scans(fn: Callable[..., jax.Array], *, differentiated: bool) -> list[Any]:
    jaxpr = jax.make_jaxpr(jax.grad(fn) if differentiated else fn)(WEIGHTS, ROWS)
    return [eqn for eqn in all_equations(jaxpr.jaxpr) if eqn.primitive.name == SCAN]


@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.parametrize("fn", [plain, called, lstm])
def test_a_scan_that_multiplies_its_state_with_shared_weights_is_a_recurrence_and_so_is_its_gradient(
    fn: Callable[..., jax.Array], differentiated: bool
) -> None:
    found = scans(fn, differentiated=differentiated)
    assert found
    assert all(map(is_recurrence, found))


@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.parametrize("fn", [layers, micro_batches, counted, rotated, constrained, inner_call])
def test_a_scan_over_layers_or_micro_batches_or_that_says_what_lies_where_is_no_recurrence(
    fn: Callable[..., jax.Array], differentiated: bool
) -> None:
    assert not any(map(is_recurrence, scans(fn, differentiated=differentiated)))


def test_a_scan_in_explicit_mode_is_no_recurrence() -> None:
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        assert not any(map(is_recurrence, scans(plain, differentiated=True)))


def traced(fn: Callable[..., Any], *args: jax.Array) -> TracedFunction:
    return trace(fn, args, {}, (), "cpu")


def test_a_recurrence_of_large_steps_stays_a_loop_and_the_plan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrences, "LEAST_PER_STEP", 4 * 8 * 8)
    program = traced(jax.grad(plain), WEIGHTS, ROWS)
    assert program.unrolled == 0
    assert [caveat.text for caveat in program.caveats] == [
        "2 loops over time steps stay loops: they are split as a whole"
    ]
    assert not program.keeps_loops


def test_a_recurrence_of_tiny_steps_is_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrences, "LEAST_PER_STEP", 4 * 8 * 8 + 1)
    program = traced(plain, WEIGHTS, ROWS)
    assert program.unrolled == 1
    assert not program.caveats


def test_layers_beside_a_recurrence_are_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrences, "LEAST_PER_STEP", 0)

    def fn(weights: jax.Array, rows: jax.Array) -> jax.Array:
        return plain(weights, rows) + layers(weights, rows)

    program = traced(fn, WEIGHTS, ROWS)
    assert program.unrolled == 1
    assert [caveat.text[:23] for caveat in program.caveats] == ["1 loops over time steps"]
