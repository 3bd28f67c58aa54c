"""Elementwise ops that compute nothing are dropped, and only those."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from unit.alpa_cfp.spmd.simplify.simplified import simplified, simplified_text

pytestmark = pytest.mark.slow

X = np.array([[1.5, -2.0, 0.0, np.nan], [np.inf, -np.inf, 1e-40, 3e38]], np.float32)
FLAGS = np.array([True, False, True, False])
INTEGERS = np.array([1, -2, 2**31 - 1, -(2**31)], np.int32)
UNSIGNED = np.array([0, 1, 2**32 - 1, 5], np.uint32)

NOTHING = {
    "x + 0": (lambda x: x + 0.0, X),
    "0 + x": (lambda x: 0.0 + x, X),
    "x - 0": (lambda x: x - 0.0, X),
    "x * 1": (lambda x: x * 1.0, X),
    "1 * x": (lambda x: 1.0 * x, X),
    "x / 1": (lambda x: x / 1.0, X),
    "-(-x)": (lambda x: lax.neg(lax.neg(x)), X),
    "max(x, -inf)": (lambda x: lax.max(x, jnp.float32(-jnp.inf)), X),
    "min(x, inf)": (lambda x: lax.min(x, jnp.float32(jnp.inf)), X),
    "x + 0 of integers": (lambda x: x + 0, INTEGERS),
    "x * 1 of unsigned integers": (lambda x: x * 1, UNSIGNED),
    "x or 0 of unsigned integers": (lambda x: x | 0, UNSIGNED),
    "x * 1 of bfloat16": (lambda x: x * 1, X.astype(jnp.bfloat16)),
    "x and True": (lambda x: x & True, FLAGS),
    "x or False": (lambda x: x | False, FLAGS),
    "not not x": (lambda x: ~~x, FLAGS),
    "select of True": (lambda x: lax.select(jnp.full(x.shape, True), x, x + 2), X),
    "select of False": (lambda x: lax.select(jnp.full(x.shape, False), x + 2, x), X),
    "select between a value and itself": (lambda x, p: lax.select(p, x, x), X, X > 0),
    "bfloat16 to float32 and back": (lambda x: x.astype(jnp.float32).astype(jnp.bfloat16), X.astype(jnp.bfloat16)),
    "int32 to a wider type and back": (lambda x: x.astype(jnp.int32).astype(jnp.int16), INTEGERS.astype(np.int16)),
}

SOMETHING = {
    "x * 0, which is not a number where x is none": (lambda x: x * 0.0, X, ("multiply",)),
    "0 - x": (lambda x: 0.0 - x, X, ("subtract",)),
    "1 / x": (lambda x: 1.0 / x, X, ("divide",)),
    "x - 1": (lambda x: x - 1.0, X, ("subtract",)),
    "x & 1 of integers": (lambda x: x & 1, INTEGERS, ("and",)),
    "x or True": (lambda x: x | True, FLAGS, ("or",)),
    "max(x, inf)": (lambda x: lax.max(x, jnp.float32(jnp.inf)), X, ("maximum",)),
    "float32 to bfloat16 and back": (lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), X, ("convert",) * 2),
    "int32 to int16 and back": (lambda x: x.astype(jnp.int16).astype(jnp.int32), INTEGERS, ("convert",) * 2),
    "unsigned to signed of one width and on": (
        lambda x: x.astype(jnp.int32).astype(jnp.float32),
        UNSIGNED,
        ("convert",) * 2,
    ),
    "signed to unsigned and on": (
        lambda x: x.astype(jnp.uint32).astype(jnp.float32),
        INTEGERS.astype(np.int16),
        ("convert",) * 2,
    ),
    "float32 to int32 and back": (
        lambda x: x.astype(jnp.int32).astype(jnp.float32),
        np.array([1.5, -2.5], np.float32),
        ("convert",) * 2,
    ),
}


@pytest.mark.parametrize("sentence", NOTHING)
def test_nothing_is_left_of(sentence):
    function, *arguments = NOTHING[sentence]
    assert simplified(function, *arguments, tolerance=0).ops == ()


@pytest.mark.parametrize("sentence", SOMETHING)
def test_something_is_left_of(sentence):
    function, argument, ops = SOMETHING[sentence]
    assert tuple(name for name in simplified(function, argument).ops if name != "broadcast_in_dim") == ops


def test_a_conversion_to_the_same_type_is_dropped():
    text = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %y = stablehlo.convert %x : tensor<2xf32>
      return %y : tensor<2xf32>
    }"""
    assert simplified_text(text, X[0, :2]).ops == ()


def test_a_conversion_that_widens_is_merged_with_the_next_one():
    x = INTEGERS.astype(np.int8)
    assert simplified(lambda x: x.astype(jnp.int16).astype(jnp.int32), x).ops == ("convert",)


def test_a_bool_is_converted_to_a_number_at_once():
    assert simplified(lambda x: x.astype(jnp.int32).astype(jnp.float32), FLAGS).ops == ("convert",)


def test_a_choice_between_two_values_stays():
    assert simplified(lambda p, x, y: lax.select(p, x, y), X > 0, X, np.nan_to_num(X)).ops == ("select",)
