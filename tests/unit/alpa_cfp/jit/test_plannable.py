"""The entries of blocks that are found before a program is lowered."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from alpa_cfp.analysis.contractions import find_contractions
from alpa_cfp.analysis.gradients import MAJOR_SHARE
from alpa_cfp.analysis.structure import find_structure
from alpa_cfp.jit.plannable import is_plannable, least_volume
from unit.alpa_cfp.analysis.programs import graph_of

X = jnp.ones((6, 8))
IMAGES, KERNEL = jnp.ones((2, 9, 9, 3)), jnp.ones((3, 3, 3, 5))


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x, y: x @ y, (X, jnp.ones((8, 5)))),
        (lambda x, y: jnp.einsum("bij,bjk->bik", x, y), (jnp.ones((2, 3, 4)), jnp.ones((2, 4, 5)))),
        (lambda x, y: jnp.einsum("ij,klj->kil", x, y), (X, jnp.ones((2, 3, 8)))),
        (lambda x, y: lax.conv_general_dilated(x, y, (2, 1), "SAME", dimension_numbers=_NHWC), (IMAGES, KERNEL)),
    ],
    ids=["dot", "batched", "several dims", "convolution"],
)
def test_a_contraction_is_as_large_as_the_analysis_finds_it(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    jaxpr, graph = jax.make_jaxpr(fn)(*args).jaxpr, graph_of(fn, *args)
    (contraction,) = find_contractions(graph, find_structure(graph))
    assert least_volume(jaxpr) == pytest.approx(MAJOR_SHARE * contraction.volume)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: x @ x.T, True),
        (lambda x: jax.jit(jax.checkpoint(lambda x: x @ x.T))(x), True),
        (lambda x: lax.ragged_dot(x, jnp.ones((2, 8, 5)), jnp.array([2, 4])), True),
        (lambda x: x[jnp.arange(3)], True),
        (lambda x: x.at[jnp.arange(3)].add(1.0), True),
        (lambda x: x[lax.convert_element_type(x[0, 0], int)], False),
        (lambda x: jnp.cumsum(jnp.sort(x), 0), False),
        (lambda x: lax.while_loop(lambda x: jnp.max(x) > 0, lambda x: x @ x.T @ x, x), False),
        (lambda x: lax.cond(x[0, 0] > 0, lambda x: x @ x.T @ x, lambda x: x, x), False),
    ],
    ids=["dot", "called", "ragged", "rows", "added rows", "one row", "neither", "while", "cond"],
)
def test_contractions_and_lookups_of_rows_are_planned_and_nothing_else(fn: Callable[..., Any], expected: bool) -> None:
    jaxpr = jax.make_jaxpr(fn)(X).jaxpr
    assert is_plannable(jaxpr, least_volume(jaxpr)) == expected


def test_a_contraction_that_is_small_beside_the_largest_is_not_planned() -> None:
    jaxpr = jax.make_jaxpr(lambda x: x @ x.T)(X).jaxpr
    assert is_plannable(jaxpr, 6 * 8 * 6)
    assert not is_plannable(jaxpr, 6 * 8 * 6 + 1)


_NHWC = ("NHWC", "HWIO", "NHWC")
