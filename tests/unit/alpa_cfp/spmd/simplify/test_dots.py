"""Every dot becomes canonical and computes the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from unit.alpa_cfp.spmd.simplify.simplified import simplified, simplify_and_look

pytestmark = pytest.mark.slow


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def dot(contracting, batch=((), ())):
    return lambda a, b: lax.dot_general(a, b, (contracting, batch))


@st.composite
def dots(draw: st.DrawFn) -> tuple[tuple, tuple[int, ...], tuple[int, ...]]:
    """Dimension numbers of a dot and its operands' shapes, with the dims of each operand in any order."""
    counts = [draw(st.integers(0, 2)) for _ in range(4)]
    sizes = iter(draw(st.lists(st.integers(1, 4), min_size=sum(counts), max_size=sum(counts))))
    batch, contracting, lhs_free, rhs_free = (
        [(group, i, next(sizes)) for i in range(counts[group])] for group in range(4)
    )
    lhs = draw(st.permutations([*batch, *contracting, *lhs_free]))
    rhs = draw(st.permutations([*batch, *contracting, *rhs_free]))
    numbers = tuple(tuple([side.index(dim) for dim in group] for side in (lhs, rhs)) for group in (contracting, batch))
    return numbers, tuple(size for *_, size in lhs), tuple(size for *_, size in rhs)


@given(dots())
@settings(max_examples=40, deadline=None)
def test_any_dot_becomes_canonical_and_computes_the_same(case):
    numbers, lhs, rhs = case
    result = simplified(dot(*numbers), normal(*lhs), normal(*rhs), tolerance=1e-5)
    assert result.counts["dot_general"] == 1
    assert result.all_dots_canonical


@given(dots(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_any_dot_of_transposes_and_under_a_transpose_becomes_canonical_and_computes_the_same(case, rng):
    (contracting, batch), lhs, rhs = case
    order = [rng.sample(range(len(shape)), len(shape)) for shape in (lhs, rhs)]
    rank = len(lhs) + len(rhs) - 2 * len(contracting[0]) - len(batch[0])
    after = rng.sample(range(rank), rank)

    def function(a, b):
        a, b = (jnp.transpose(x, by) for x, by in zip((a, b), order, strict=True))
        return jnp.transpose(dot(contracting, batch)(a, b), after)

    arguments = [
        normal(*(shape[by.index(dim)] for dim in range(len(shape))))
        for shape, by in zip((lhs, rhs), order, strict=True)
    ]
    result = simplified(function, *arguments, tolerance=1e-5)
    assert result.counts["dot_general"] == 1
    assert result.all_dots_canonical


@pytest.mark.parametrize("contracting", [((1,), (0,)), ((0,), (0,)), ((1,), (1,)), ((0,), (1,))])
def test_a_canonical_dot_is_left_as_it_is(contracting):
    assert simplified(dot(contracting), normal(4, 4), normal(4, 4)).ops == ("dot_general",)


def test_a_canonical_batched_dot_is_left_as_it_is():
    assert simplified(dot(((2,), (1,)), ((0,), (0,))), normal(3, 4, 5), normal(3, 5, 6)).ops == ("dot_general",)


def test_a_dot_with_two_contracting_dims_becomes_one_with_one():
    result = simplified(dot(((0, 1), (0, 1))), normal(2, 3, 4), normal(2, 3, 5))
    assert result.ops == ("reshape", "reshape", "dot_general")


def test_two_free_dims_become_one_and_two_again_after_the_dot():
    assert simplified(dot(((2,), (0,))), normal(2, 3, 4), normal(4, 5)).ops == ("reshape", "dot_general", "reshape")


def test_contracting_dims_are_taken_in_the_order_in_which_they_lie():
    result = simplified(dot(((1, 0), (1, 0))), normal(2, 3, 4), normal(2, 3, 5))
    assert "transpose" not in result.ops


def test_dims_that_do_not_lie_side_by_side_are_transposed():
    result = simplified(dot(((0, 2), (0, 1))), normal(2, 3, 4), normal(2, 4, 5))
    assert result.counts == {"transpose": 1, "reshape": 2, "dot_general": 1}


def test_batch_dims_are_brought_to_the_front():
    def scores(query: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.einsum("bqhd,bkhd->bhqk", query, key)

    result = simplified(scores, normal(2, 3, 4, 5), normal(2, 6, 4, 5))
    assert result.ops == ("transpose", "transpose", "dot_general")


@pytest.mark.parametrize(("lhs", "rhs"), [((4,), (4,)), ((4,), (4, 5)), ((5, 4), (4,))])
def test_a_product_with_a_vector_gets_a_free_dim_of_size_1(lhs, rhs):
    contracting = ((len(lhs) - 1,), (0,))
    result = simplified(dot(contracting), normal(*lhs), normal(*rhs))
    assert result.all_dots_canonical
    assert result.counts["dot_general"] == 1


def test_an_outer_product_gets_a_contracting_dim_of_size_1():
    assert simplified(dot(((), ())), normal(4), normal(5)).ops == ("reshape", "reshape", "dot_general")


def test_a_transpose_that_exchanges_free_and_contracting_dim_is_read_through():
    result = simplified(lambda a, b: jnp.swapaxes(a, 1, 2) @ jnp.swapaxes(b, 1, 2), normal(2, 4, 3), normal(2, 5, 4))
    assert result.ops == ("dot_general",)


def test_a_transpose_that_moves_a_batch_dim_stays():
    result = simplified(lambda a, b: jnp.transpose(a, (1, 0, 2)) @ b, normal(3, 2, 4), normal(2, 4, 5))
    assert result.ops == ("transpose", "dot_general")


def test_the_transpose_of_a_dot_is_the_dot_of_the_exchanged_operands():
    assert simplified(lambda a, b: (a @ b).T, normal(3, 4), normal(4, 5)).ops == ("dot_general",)


def test_the_transpose_of_a_dot_that_is_used_elsewhere_stays():
    result = simplified(lambda a, b: (a @ b, (a @ b).T), normal(3, 4), normal(4, 5))
    assert result.ops == ("dot_general", "transpose")


def _with_precision(result: str, operation: str) -> str:
    return f"""func.func @main(%a: tensor<2x3x4xf32>, %b: tensor<2x3x5xf32>) -> tensor<{result}xf32> {{
      %d = "stablehlo.dot_general"(%a, %b) {{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [0, 1],
        rhs_contracting_dimensions = [0, 1]>, precision_config = [#stablehlo<precision HIGH>,
        #stablehlo<precision HIGHEST>]}} : (tensor<2x3x4xf32>, tensor<2x3x5xf32>) -> tensor<4x5xf32>
      {operation}
    }}"""


def test_the_precision_of_each_operand_is_kept():
    text = simplify_and_look(_with_precision("4x5", "return %d : tensor<4x5xf32>")).text
    assert "precision = [HIGH, HIGHEST]" in text


def test_the_precision_of_each_operand_goes_with_it_where_they_are_exchanged():
    transposed = "%t = stablehlo.transpose %d, dims = [1, 0] : (tensor<4x5xf32>) -> tensor<5x4xf32>"
    result = simplify_and_look(_with_precision("5x4", f"{transposed}\n return %t : tensor<5x4xf32>"))
    assert "transpose" not in result.ops
    assert "precision = [HIGHEST, HIGH]" in result.text
