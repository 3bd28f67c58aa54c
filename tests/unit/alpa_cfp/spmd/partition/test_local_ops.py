"""Elementwise and structural ops: one device's op computes its part of what the global op computes."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax._src.lax import lax as lax_internal

from alpa_cfp.spmd.partition import UnsupportedByShardyError
from alpa_cfp.spmd.partition.shardy import partition_with_shardy
from alpa_cfp.spmd.shardings.sharding import ArraySharding
from unit.alpa_cfp.spmd.helpers import (
    MESH_2X4,
    MESHES,
    Case,
    annotate,
    annotate_values,
    assert_partitioned_right,
    split,
)

pytestmark = pytest.mark.slow

ZERO, ONE = np.zeros((), np.float32), np.ones((), np.float32)


def _regrouped(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two shapes of the same number of elements: products of neighbouring factors, with dims of size 1 between."""
    factors = draw(st.lists(st.sampled_from([2, 3, 4]), min_size=2, max_size=4))

    def shape() -> list[int]:
        dims, current = [], 1
        for factor in factors:
            if draw(st.booleans()):
                dims.append(current)
                current = 1
            current *= factor
        return [*dims, current, *([1] if draw(st.booleans()) else [])]

    return shape(), shape()


@given(shapes=st.composite(_regrouped)(), seed=st.integers(0, 2**16))
@settings(max_examples=12)
def test_a_reshape_to_any_shape_keeps_the_elements_order_over_devices(shapes, seed):
    before, after = shapes
    value = np.arange(np.prod(before), dtype=np.float32).reshape(before)
    case = Case(lambda x: (x + 1).reshape(after) * 2, (value,))
    case.assert_right_with_any_shardings(random.Random(seed).choice(MESHES), seed)


def test_a_reshape_of_a_dim_split_in_two_parts_of_an_axis_is_right():
    # 8 parts of the merged dim are the 2 x 4 parts of the dims that it is made of.
    case = Case(lambda x: x.reshape(8, 4) * 2, (np.arange(32, dtype=np.float32).reshape(2, 4, 4),))
    for seed in range(3):
        case.assert_right_with_any_shardings(MESH_2X4, seed)


def test_random_numbers_inside_a_loop_are_refused():
    # Each device would run the loop by itself and draw other numbers.
    def draw(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 2, lambda i, c: c + lax_internal.rng_uniform(ZERO, ONE, (4,)), x)

    module = Case(draw, (np.zeros(4, np.float32),)).module()
    annotate_values(module, MESH_2X4, lambda op, shape: ArraySharding.replicated(MESH_2X4, len(shape)))
    with pytest.raises(UnsupportedByShardyError, match="random numbers"):
        partition_with_shardy(module, ())


BATCHED = {
    "fft": lambda x: jnp.abs(jnp.fft.fft(x)),
    "top_k": lambda x: jax.lax.top_k(x, 2)[0],
    "cholesky": lambda x: jnp.linalg.cholesky(x @ x.mT + 4 * jnp.eye(4)),
    "eigh": lambda x: jnp.linalg.eigh(x @ x.mT)[0],
    "qr": lambda x: jnp.abs(jnp.linalg.qr(x)[1]),
    "svd": lambda x: jnp.linalg.svd(x, compute_uv=False),
    "solve": lambda x: jnp.linalg.solve(x @ x.mT + jnp.eye(4), x),
}


@pytest.mark.parametrize("name", BATCHED)
def test_a_batch_of_matrices_is_worked_on_in_parts_without_communication(name: str) -> None:
    case = Case(BATCHED[name], (np.random.default_rng(0).standard_normal((8, 4, 4)).astype(np.float32),))
    module = case.module()
    annotate(module, MESH_2X4, [split(MESH_2X4, "xy", "", "")])
    program = assert_partitioned_right(module, case.arguments, case.expected())
    assert program.partitioner == "shardy"
    assert program.collectives == ()
    assert {sharding.dims[0] for sharding in program.output_shardings} == {split(MESH_2X4, "xy").dims[0]}


DECOMPOSITIONS = {
    "cholesky": lambda x: jnp.linalg.cholesky(x @ x.mT + 4 * jnp.eye(8)),
    "eigh": lambda x: jnp.linalg.eigh(x @ x.mT)[0],
    "qr": lambda x: jnp.abs(jnp.linalg.qr(x)[1]),
    "lu": lambda x: jax.scipy.linalg.lu(x)[2],
}


@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_a_matrix_that_is_split_is_gathered_before_it_is_decomposed(name: str) -> None:
    case = Case(DECOMPOSITIONS[name], (np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32),))
    module = case.module()
    annotate(module, MESH_2X4, [split(MESH_2X4, "x", "y")])
    program = assert_partitioned_right(module, case.arguments, case.expected())
    assert program.partitioner == "shardy"
    assert "all-gather" in {each.kind for each in program.collectives}
