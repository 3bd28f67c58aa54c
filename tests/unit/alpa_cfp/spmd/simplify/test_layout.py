"""Reshapes, transposes and broadcasts are merged, or dropped where they move nothing."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from unit.alpa_cfp.spmd.simplify.simplified import simplified, simplified_text

pytestmark = pytest.mark.slow

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@st.composite
def layouts(draw: st.DrawFn) -> list[tuple]:
    """Some reshapes, transposes and broadcasts, one after the other, of an array of shape (2, 1, 3)."""
    shape: tuple[int, ...] = (2, 1, 3)
    steps: list[tuple] = []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(("transpose", "add ones", "drop ones", "broadcast", "flatten")))
        if kind == "transpose":
            order = tuple(draw(st.permutations(range(len(shape)))))
            steps.append((lax.transpose, order))
            shape = tuple(shape[dim] for dim in order)
        elif kind == "broadcast" and len(shape) < 5:
            # One new dim, and any dim of size 1 grows or not; the dims go anywhere.
            dims = tuple(draw(st.permutations(range(len(shape) + 1)))[:-1])
            sizes = [draw(st.integers(1, 2)) for _ in range(len(shape) + 1)]
            for size, dim in zip(shape, dims, strict=True):
                sizes[dim] = size if size != 1 else sizes[dim]
            steps.append((lax.broadcast_in_dim, tuple(sizes), dims))
            shape = tuple(sizes)
        else:
            reshaped = {
                "add ones": (1, *shape) if len(shape) < 5 else shape,
                "drop ones": tuple(size for size in shape if size != 1),
            }
            shape = reshaped.get(kind, (math.prod(shape),))
            steps.append((lax.reshape, shape))
    return steps


def _follow(steps, x):
    for step, *arguments in steps:
        x = step(x, *arguments)
    return x


@given(layouts())
@settings(max_examples=40, deadline=None)
def test_any_sequence_of_them_computes_the_same(steps):
    result = simplified(lambda x: _follow(steps, x), np.arange(6, dtype=np.float32).reshape(2, 1, 3))
    assert len(result.ops) <= len(steps)


@given(layouts(), st.integers(0, 2))
@settings(max_examples=40, deadline=None)
def test_any_sequence_of_them_counts_the_same(steps, dim):
    result = simplified(lambda x: x * _follow(steps, lax.broadcasted_iota(np.float32, (2, 1, 3), dim)), np.float32(2))
    assert len(result.ops) <= len(steps) + 3


CASES = {
    "a reshape of a reshape is one": (lambda x: x.reshape(6, 4).reshape(24), ("reshape",)),
    "reshapes there and back are nothing": (
        lambda x: x.reshape(6, 4).reshape(2, 3, 4) * 2,
        ("broadcast_in_dim", "multiply"),
    ),
    "a transpose of a transpose is one": (
        lambda x: lax.transpose(lax.transpose(x, (1, 0, 2)), (0, 2, 1)),
        ("transpose",),
    ),
    "transposes there and back are nothing": (lambda x: lax.transpose(lax.transpose(x, (1, 2, 0)), (2, 0, 1)), ()),
    "a transpose that moves dims of size 1 only is a reshape": (
        lambda x: lax.transpose(x.reshape(2, 12, 1), (2, 0, 1)),
        ("reshape",),
    ),
    "a transpose of a broadcast is a broadcast": (
        lambda x: lax.transpose(lax.broadcast_in_dim(x, (5, 2, 3, 4), (1, 2, 3)), (1, 2, 0, 3)),
        ("broadcast_in_dim",),
    ),
    "a broadcast that adds dims of size 1 is a reshape": (
        lambda x: lax.broadcast_in_dim(x, (2, 1, 3, 4), (0, 2, 3)),
        ("reshape",),
    ),
    "a broadcast of a broadcast is one": (
        lambda x: lax.broadcast_in_dim(lax.broadcast_in_dim(x, (5, 2, 3, 4), (1, 2, 3)), (5, 2, 6, 3, 4), (0, 1, 3, 4)),
        ("broadcast_in_dim",),
    ),
    "a broadcast reads through a reshape that adds dims of size 1": (
        lambda x: lax.broadcast_in_dim(lax.reshape(x, (2, 3, 1, 4)), (2, 3, 5, 4), (0, 1, 2, 3)),
        ("broadcast_in_dim",),
    ),
    "a broadcast reads through a reshape that drops dims of size 1": (
        lambda x: lax.broadcast_in_dim(lax.reshape(jnp.sum(x, 2, keepdims=True) * 2, (2, 3)), (2, 3, 5), (0, 1)),
        ("reduce", "reshape", "broadcast_in_dim", "multiply", "broadcast_in_dim"),
    ),
    "an iota that is repeated is an iota": (
        lambda x: x + lax.broadcast_in_dim(lax.iota(np.float32, 3), (2, 3, 4), (1,)),
        ("iota", "add"),
    ),
    "an iota with more or fewer dims of size 1 is an iota": (
        lambda x: x + lax.iota(np.float32, 3).reshape(1, 3, 1).reshape(3)[None, :, None],
        ("iota", "add"),
    ),
    "an iota in another shape stays reshaped": (
        lambda x: x + lax.iota(np.float32, 24).reshape(2, 3, 4),
        ("iota", "reshape", "add"),
    ),
    "a number is laid out once": (lambda x: x + jnp.full((6, 4), 2.0).reshape(2, 3, 4), ("broadcast_in_dim", "add")),
}


@pytest.mark.parametrize("sentence", CASES)
def test_rule(sentence):
    function, ops = CASES[sentence]
    assert simplified(function, X).ops == ops


def _of_one_op(op: str, result: str) -> str:
    return f"""func.func @main(%x: tensor<2x3xf32>) -> tensor<{result}xf32> {{
      %y = {op}
      return %y : tensor<{result}xf32>
    }}"""


@pytest.mark.parametrize(
    "op",
    [
        "stablehlo.reshape %x : (tensor<2x3xf32>) -> tensor<2x3xf32>",
        "stablehlo.transpose %x, dims = [0, 1] : (tensor<2x3xf32>) -> tensor<2x3xf32>",
        "stablehlo.broadcast_in_dim %x, dims = [0, 1] : (tensor<2x3xf32>) -> tensor<2x3xf32>",
    ],
)
def test_what_changes_nothing_is_dropped(op):
    assert simplified_text(_of_one_op(op, "2x3"), X[0, :2, :3]).ops == ()


def test_a_broadcast_that_only_moves_dims_is_a_transpose():
    op = "stablehlo.broadcast_in_dim %x, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>"
    assert simplified_text(_of_one_op(op, "3x2"), X[0, :2, :3]).ops == ("transpose",)


def test_a_reshape_that_does_more_than_add_ones_stays_under_a_broadcast():
    result = simplified(lambda x: lax.broadcast_in_dim(x.reshape(6, 4), (5, 6, 4), (1, 2)), X)
    assert result.ops == ("reshape", "broadcast_in_dim")
