"""Sums over devices that are added are one sum: how often a program communicates, and that its values stay right."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import optimization_barrier as reshard

from unit.alpa_cfp.spmd.helpers import MESH_2X4, Case, annotate, assert_partitioned_right, split
from unit.alpa_cfp.spmd.partition.solved_programs import kinds, partitioned

X = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
KERNELS = tuple(np.random.default_rng(1).normal(size=(3, 16, 8)).astype(np.float32))
ROWS = split(MESH_2X4, "y", "")
COLUMNS = split(MESH_2X4, "", "y")
WHOLE = split(MESH_2X4, "", "")


def _all_reduce_bytes(function: Callable, outputs: list, *, kernels=(ROWS, ROWS, ROWS)) -> list[int]:
    """The sizes of the all-reduces of `function(x, *kernels)`, whose values have been checked."""
    case = Case(function, (X, *KERNELS))
    module = annotate(case.module(), MESH_2X4, [COLUMNS, *kernels], outputs)
    program = assert_partitioned_right(module, case.arguments, case.expected())
    assert program.partitioner == "shardy"
    assert {collective.kind for collective in program.collectives} <= {"all-reduce"}
    return [collective.size_bytes for collective in program.collectives]


def test_the_sum_of_three_contractions_is_reduced_once() -> None:
    assert _all_reduce_bytes(lambda x, q, k, v: x @ q + x @ k + x @ v, [WHOLE]) == [8 * 8 * 4]


def test_a_contraction_that_is_also_used_on_its_own_is_reduced_on_its_own() -> None:
    def function(x, q, k, v):
        left = x @ q
        return left + x @ k, left + v[:8]

    assert len(_all_reduce_bytes(function, [WHOLE, WHOLE], kernels=(ROWS, ROWS, WHOLE))) == 2


def test_a_contraction_added_to_itself_is_reduced_once() -> None:
    def function(x, q, k, v):
        left = x @ q
        return left + left + k[:8] + v[:8]

    assert len(_all_reduce_bytes(function, [WHOLE], kernels=(ROWS, WHOLE, WHOLE))) == 1


@pytest.mark.parametrize("other", ["maximum", "multiply"])
def test_what_is_not_added_is_reduced_before(other: str) -> None:
    def function(x, q, k, v):
        return getattr(jnp, other)(x @ q, x @ k) + v[:8]

    assert len(_all_reduce_bytes(function, [WHOLE], kernels=(ROWS, ROWS, WHOLE))) == 2


def test_sums_over_different_devices_stay_apart() -> None:
    x_rows = split(MESH_2X4, "x", "")
    case = Case(lambda x, z, q, k: x @ q + z @ k, (X, X + 1, *KERNELS[:2]))
    inputs = [COLUMNS, split(MESH_2X4, "", "x"), ROWS, x_rows]
    program = assert_partitioned_right(
        annotate(case.module(), MESH_2X4, inputs, [WHOLE]), case.arguments, case.expected()
    )
    assert sorted(collective.group_size for collective in program.collectives) == [2, 4]


def test_transposes_and_reshapes_between_the_sums_and_the_addition_are_made_before() -> None:
    def function(x, q, k, v):
        return (x @ q).T.reshape(64) + (x @ k).T.reshape(64) + (x @ v).reshape(64)

    assert _all_reduce_bytes(function, [split(MESH_2X4, "")]) == [8 * 8 * 4]


def test_a_transposed_sum_that_is_also_used_on_its_own_is_reduced_on_its_own() -> None:
    def function(x, q, k, v):
        left = (x @ q).T
        return left + x @ k, left * v[:8]

    assert len(_all_reduce_bytes(function, [WHOLE, WHOLE], kernels=(ROWS, ROWS, WHOLE))) == 2


def test_parts_of_sums_along_one_dim_are_added_before_they_are_scattered() -> None:
    def function(x, q, k):
        return reshard(x @ q) + reshard(x @ k)

    program = partitioned(function, (X, *KERNELS[:2]), [COLUMNS, ROWS, ROWS], [ROWS], [WHOLE, ROWS, WHOLE, ROWS, ROWS])
    assert kinds(program) == ["reduce-scatter"]
    assert program.collectives[0].size_bytes == 8 * 8 * 4
