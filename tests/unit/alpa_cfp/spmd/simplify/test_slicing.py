"""Slices, pads and concatenations of everything or with nothing are dropped."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from unit.alpa_cfp.spmd.simplify.simplified import simplified, simplified_text

X = np.arange(12, dtype=np.float32).reshape(3, 4)
EMPTY = np.zeros((0, 4), np.float32)
START = np.int32(2)


def _of_one_op(op: str) -> str:
    return f"func.func @main(%x: tensor<3x4xf32>) -> tensor<3x4xf32> {{ %y = {op}\n return %y : tensor<3x4xf32> }}"


@pytest.mark.parametrize(
    "op",
    [
        "stablehlo.slice %x [0:3, 0:4] : (tensor<3x4xf32>) -> tensor<3x4xf32>",
        "stablehlo.concatenate %x, dim = 0 : (tensor<3x4xf32>) -> tensor<3x4xf32>",
    ],
)
def test_what_takes_everything_is_dropped(op):
    assert simplified_text(_of_one_op(op), X).ops == ()


CASES = {
    "a pad by nothing is dropped": (lambda x: lax.pad(x, 0.0, [(0, 0, 0), (0, 0, 0)]), (X,), ()),
    "a pad by something stays": (lambda x: lax.pad(x, 0.0, [(0, 0, 1), (0, 0, 0)]), (X,), ("pad",)),
    "a pad that cuts and adds as much stays": (lambda x: lax.pad(x, 0.0, [(1, -1, 0), (0, 0, 0)]), (X,), ("pad",)),
    "an empty operand is not joined": (lambda x, e: jnp.concatenate([e, x, x, e]), (X, EMPTY), ("concatenate",)),
    "what is joined to nothing is itself": (lambda x, e: jnp.concatenate([e, x, e]), (X, EMPTY), ()),
    "a slice that is one operand of a concatenation is the operand": (
        lambda x: lax.slice(jnp.concatenate([2 * x, x, x]), (3, 0), (6, 4)),
        (X,),
        (),
    ),
    "a slice across operands of a concatenation stays": (
        lambda x: lax.slice(jnp.concatenate([2 * x, x, x]), (2, 0), (5, 4)),
        (X,),
        ("broadcast_in_dim", "multiply", "concatenate", "slice"),
    ),
    "a slice with steps stays": (lambda x: lax.slice(x, (0, 0), (3, 4), (1, 2)), (X,), ("slice",)),
}


@pytest.mark.parametrize("sentence", CASES)
def test_rule(sentence):
    function, arguments, ops = CASES[sentence]
    assert simplified(function, *arguments).ops == ops


def test_a_dynamic_slice_of_everything_is_dropped():
    result = simplified(lambda x, i: lax.dynamic_slice(x, (i, i), (3, 4)), X, START)
    assert "dynamic_slice" not in result.ops


def test_a_dynamic_update_of_everything_is_the_update():
    result = simplified(lambda x, y, i: lax.dynamic_update_slice(x, y, (i, i)), X, -X, START)
    assert "dynamic_update_slice" not in result.ops
