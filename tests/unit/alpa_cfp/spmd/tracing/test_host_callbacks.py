"""Jaxprs without the calls back into Python that they can do without."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.extend.core import jaxpr_as_fun

from alpa_cfp.spmd.tracing.host_callbacks import without_callbacks

pytestmark = pytest.mark.slow

X = jnp.arange(12.0).reshape(3, 4)


def rewritten(function: Callable[..., Any], *args: Any) -> tuple[Callable[..., list[Any]], str, list[str]]:
    """The function without callbacks, its jaxpr as text, and what was said."""
    closed, said = without_callbacks(jax.make_jaxpr(function)(*args))
    return jaxpr_as_fun(closed), str(closed), said


def shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def python_doubles(x: Any) -> Any:
    return jax.pure_callback(lambda x: 2 * x, shape(x), x)


def looks_on(x: Any) -> Any:
    jax.debug.print("{}", x.sum())
    jax.debug.print("{}", x.sum(), ordered=True)
    jax.debug.callback(lambda x: None, x)
    io_callback(lambda x: None, None, x, ordered=True)
    return jnp.tanh(x)


def unused(x: Any) -> Any:
    jnp.sin(python_doubles(x))
    return jnp.tanh(x)


def unused_in_a_call(x: Any) -> Any:
    return jax.jit(lambda x: (jnp.tanh(x), python_doubles(x)))(x)[0]


def in_a_loop(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        jax.debug.print("{}", row)
        return carry + row, row.sum()

    return lax.scan(step, x[0], x)


def in_a_while_loop(x: Any) -> Any:
    def step(carry: Any) -> Any:
        return carry[0] + 1, eqx.error_if(jnp.tanh(carry[1]), jnp.any(carry[1] > 100), "too large")

    return lax.while_loop(lambda carry: carry[0] < 3, step, (0, x))


def in_a_branch(x: Any) -> Any:
    return lax.cond(x.sum() > 0, looks_on, jnp.sin, x)


looking_on = pytest.mark.parametrize(
    "function",
    [looks_on, unused, unused_in_a_call, in_a_loop, in_a_while_loop, in_a_branch],
)


@looking_on
def test_what_only_looks_on_is_left_out_and_the_values_are_the_same(function: Callable[[Any], Any]) -> None:
    without, text, _ = rewritten(function, X)
    assert "callback" not in text
    assert "debug_print" not in text
    for actual, expected in zip(without(X), jax.tree.leaves(function(X)), strict=True):
        # Where nothing calls back, XLA may fuse what it could not before.
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_a_callback_that_is_left_out_is_named_with_its_line() -> None:
    _, _, (said,) = rewritten(looks_on, X)
    assert said.startswith("calls back into Python whose results nothing uses are left out of the program: debug_print")
    assert said.count("test_host_callbacks.py") == 4


def test_gradients_through_what_looks_on_are_the_same() -> None:
    def loss(x: Any) -> Any:
        jax.debug.print("{}", x)
        return (jnp.tanh(x) ** 2).sum()

    without, text, _ = rewritten(jax.grad(jax.checkpoint(loss)), X)
    assert "debug_print" not in text
    np.testing.assert_array_equal(without(X)[0], jax.grad(loss)(X))


@pytest.mark.parametrize(
    ("value", "invalid"),
    [
        (X, np.nan),
        (X.astype(jnp.bfloat16), np.nan),
        (X.astype(jnp.complex64), np.nan),
        (X.astype(jnp.int8), 127),
        (X.astype(jnp.uint32), 2**32 - 1),
        (X > 5, True),
        (7, 2**31 - 1),
        (7.0, np.nan),
    ],
)
def test_what_fails_a_check_becomes_a_value_of_its_type_that_cannot_be_meant(value: Any, invalid: Any) -> None:
    def checked(value: Any, fails: Any) -> Any:
        return eqx.error_if(value, fails, "refused")

    without, text, (said,) = rewritten(checked, value, False)
    assert "callback" not in text
    assert said.startswith("checks that call back into Python raise no error")
    (passed,), (failed,) = without(value, False), without(value, True)
    np.testing.assert_array_equal(passed, value)
    expected = jnp.full_like(passed, invalid)
    if expected.dtype == jnp.bfloat16:  # numpy does not take its NaNs for equal
        failed, expected = failed.astype(jnp.float32), expected.astype(jnp.float32)
    np.testing.assert_array_equal(failed, expected)
    assert without(value, True)[0].dtype == passed.dtype == jax.eval_shape(lambda value: value, value).dtype


def test_a_check_in_a_batch_fails_for_the_whole_batch_as_it_would_raise_for_it() -> None:
    without, text, _ = rewritten(jax.vmap(lambda row: eqx.error_if(row, row[0] > 7, "too large")), X)
    assert "callback" not in text
    assert np.isnan(without(X)[0]).all()
    np.testing.assert_array_equal(without(X / 2)[0], X / 2)


def test_gradients_pass_a_check() -> None:
    def loss(x: Any) -> Any:
        return (eqx.error_if(jnp.tanh(x), jnp.any(x > 100), "too large") ** 2).sum()

    without, text, _ = rewritten(jax.grad(loss), X)
    assert "callback" not in text
    np.testing.assert_allclose(without(X)[0], jax.grad(lambda x: (jnp.tanh(x) ** 2).sum())(X), rtol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        python_doubles,
        lambda x: io_callback(np.negative, shape(x), x),
        # What another branch computes is meant as the same; here Python's part may be, too.
        lambda x: lax.cond(x.sum() > 0, python_doubles, lambda x: 2 * x, x),
        lambda x: lax.cond(x.sum() > 0, lambda x: python_doubles(x) + 1, lambda x: x, x),
        lambda x: lax.scan(lambda carry, row: (carry + python_doubles(row), None), x[0], x)[0],
    ],
)
def test_a_callback_whose_result_is_used_stays(function: Callable[[Any], Any]) -> None:
    _, text, said = rewritten(function, X)
    assert "callback" in text
    assert not said


def test_a_program_without_callbacks_is_the_same_object() -> None:
    closed = jax.make_jaxpr(lambda x: (jnp.sin(x), lax.scan(lambda c, r: (c + r, r), x[0], x)))(X)
    assert without_callbacks(closed) == (closed, [])
    assert without_callbacks(closed)[0] is closed


def test_the_dimension_numbers_of_a_scatter_stay_what_they_are() -> None:
    """They are a named tuple among the parameters of the equation, which the jaxprs of a `cond` are a plain one of."""

    def scattered(x: Any) -> Any:
        jax.debug.print("{}", x.sum())
        return x.at[jnp.array([0, 2, 0])].add(1.0)[jnp.array([2, 1])]

    function, _, _ = rewritten(scattered, X)
    np.testing.assert_array_equal(function(X)[0], scattered(X))
