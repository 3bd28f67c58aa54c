"""Reductions over nothing are reshapes, reductions of reductions are one, and layouts below them do not matter."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from unit.alpa_cfp.spmd.simplify.simplified import simplified

pytestmark = pytest.mark.slow

X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
ZERO = np.float32(0)

CASES = {
    "over dims of size 1 it is a reshape": (lambda x: jnp.sum(x.reshape(6, 1, 4), 1), ("reshape",)),
    "a maximum over dims of size 1 is a reshape": (lambda x: jnp.max(x.reshape(6, 1, 4), 1), ("reshape",)),
    "of a sum it is one sum": (lambda x: jnp.sum(jnp.sum(x, 1), 0), ("reduce",)),
    "of a maximum it is one maximum": (lambda x: jnp.max(jnp.max(x, 2), 0), ("reduce",)),
    "of a maximum a sum stays a sum": (lambda x: jnp.sum(jnp.max(x, 2), 0), ("reduce", "reduce")),
    "it does not see a transpose of what it reduces": (
        lambda x: jnp.sum(lax.transpose(x, (0, 2, 1)), (1, 2)),
        ("reduce",),
    ),
    "it does not see a transpose that keeps the order of the dims that stay": (
        lambda x: jnp.sum(lax.transpose(x, (1, 0, 2)), 0),
        ("reduce",),
    ),
    "a transpose of the dims that stay is needed": (
        lambda x: jnp.sum(lax.transpose(x, (1, 0, 2)), 2),
        ("transpose", "reduce"),
    ),
    "it does not see a reshape of what it reduces": (lambda x: jnp.sum(x.reshape(6, 4), 0), ("reduce",)),
    "a reshape of the dims that stay is needed": (lambda x: jnp.sum(x.reshape(6, 4), 1), ("reshape", "reduce")),
    "a reshape across both is needed": (lambda x: jnp.sum(x.reshape(4, 6), 1), ("reshape", "reduce")),
}


@pytest.mark.parametrize("sentence", CASES)
def test_of_a_reduction(sentence):
    function, ops = CASES[sentence]
    assert simplified(function, X).ops == ops


def test_a_reduction_that_starts_from_another_number_stays():
    def function(x):
        return lax.reduce(x.reshape(6, 1, 4), np.float32(1), lax.add, (1,))

    assert "reduce" in simplified(function, X).ops


def test_a_reduction_that_starts_from_a_value_stays():
    assert "reduce" in simplified(lambda x, start: lax.reduce(x.reshape(6, 1, 4), start, lax.add, (1,)), X, ZERO).ops


@pytest.mark.parametrize("reducer", [jnp.any, jnp.all])
def test_reductions_of_bools_are_merged(reducer):
    assert simplified(lambda x: reducer(reducer(x, 0), 1), X > 0).ops == ("reduce",)


def test_reductions_of_several_values_stay():
    assert simplified(lambda x: jnp.argmax(x.reshape(6, 1, 4), 1), X).counts["reduce"] == 1


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_sum_of_any_reshaped_and_transposed_value_computes_the_same(data):
    shapes = [(2, 3, 4), (6, 4), (24,), (2, 12), (3, 8), (1, 2, 3, 4), (2, 3, 1, 4), (4, 6), (2, 3, 2, 2), (2, 2, 6)]
    shape = data.draw(st.sampled_from(shapes))
    order = data.draw(st.permutations(range(len(shape))))
    dims = data.draw(st.lists(st.sampled_from(range(len(shape))), unique=True))
    further = data.draw(st.booleans()) and len(dims) < len(shape)

    def function(x):
        total = jnp.sum(lax.transpose(x.reshape(shape), order), tuple(dims))
        return jnp.sum(total, 0) if further else total

    assert simplified(function, X, tolerance=1e-5).counts["reduce"] <= 1
