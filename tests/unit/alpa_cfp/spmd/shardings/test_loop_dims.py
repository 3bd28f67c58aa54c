"""Which dims of a loop can be split: those that no iteration works along."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.shardings.loop_dims import LoopDims, loops_of
from alpa_cfp.spmd.shardings.sharding_rules import give_rules
from unit.alpa_cfp.spmd.helpers import lower

X = np.ones((8, 16), np.float32)


def free_dims(function: Callable[..., Any], *arguments: Any) -> list[list[bool]]:
    """Of each result of the only loop, whether its dims can be split."""
    with mlir.context():
        module = mlir.parse(lower(function, arguments).bytecode)
        give_rules(module)
        (loop,) = loops_of(mlir.entry_block(mlir.main_function(module)))
        dims = LoopDims(loop)
        ranks = [mlir.tensor_type(value).rank for value in loop.results]
        return [
            [dims.is_split_freely(value, dim) for dim in range(rank)]
            for value, rank in zip(loop.results, ranks, strict=True)
            if rank
        ]


def _loop(body: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    return lambda x: lax.fori_loop(0, 3, lambda i, c: body(c), x)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda c: jnp.sin(c) * 2, [True, True]),
        (lambda c: c + c.sum(1, keepdims=True), [True, True]),
        (lambda c: c - c.mean(0), [True, True]),
        (lambda c: jnp.sort(c, axis=0), [False, True]),
        (lambda c: c[:, ::-1], [True, False]),
        (lambda c: c.reshape(4, 32).reshape(8, 16) * 2, [False, False]),
        (lambda c: jnp.tanh(c @ c.T @ c), [False, True]),
    ],
    ids=["elementwise", "sum", "mean", "sort", "reverse", "reshape", "products"],
)
def test_a_dim_is_split_freely_where_nothing_works_along_it_but_sums(body, expected):
    assert free_dims(_loop(body), X) == [expected]


def test_what_the_condition_sums_over_stays_whole():
    assert free_dims(lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, x), X) == [[False, False]]


def test_carried_arrays_that_change_places_are_split_alike():
    def swap(i: jax.Array, carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, b = carried
        return b, a[:, ::-1]

    assert free_dims(lambda a, b: lax.fori_loop(0, 3, swap, (a, b)), X, X) == [[True, False]] * 2


def test_an_inner_loop_that_works_along_a_dim_keeps_it_whole_outside():
    def outer(c: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 2, lambda j, d: jnp.sort(d, axis=0), c)

    assert free_dims(_loop(outer), X) == [[False, True]]


def test_random_bits_are_drawn_along_all_dims_alike():
    shapes = free_dims(lambda key: jax.random.bits(key, (8, 16)), np.array([0, 1], np.uint32))
    assert shapes.count([True, True]) == 2
