"""The small arrays of a collective go as one, and every value stays the same."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir

from alpa_cfp.spmd.compile.joined_arrays import is_joined, join_small_arrays
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.partition import PartitionedProgram, partition
from unit.alpa_cfp.spmd.helpers import MESH_2X4, annotate_randomly, assert_parts_equal, lower, run, split, values_of
from unit.alpa_cfp.spmd.partition.solved_programs import partitioned

pytestmark = pytest.mark.slow

WHOLE, COLUMNS, ROWS = split(MESH_2X4, "", ""), split(MESH_2X4, "", "y"), split(MESH_2X4, "y", "")
LARGE = 130  # rows and columns of an array that is not joined


def elements(program: PartitionedProgram, *, joined: bool = True) -> list[list[int]]:
    """For each collective the number of elements of each of its arrays."""

    def change(module: ir.Module) -> list[list[int]]:
        if joined:
            join_small_arrays(module)
            assert module.operation.verify()
        return [
            [math.prod(mlir.tensor_shape(each)) for each in op.operands]
            for op in mlir.all_operations(module)
            if op.name in ("stablehlo.all_reduce", "stablehlo.all_gather")
        ]

    return mlir.edit(program.bytecode, change)[1]


def sums(*shapes: tuple[int, int]) -> PartitionedProgram:
    """A program whose only collective sums arrays of these shapes."""
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(rows, 8)), rng.normal(size=(8, columns))) for rows, columns in shapes]
    arguments = [array.astype(np.float32) for pair in pairs for array in pair]

    def function(*arrays):
        return tuple(x @ w for x, w in zip(arrays[::2], arrays[1::2], strict=True))

    inputs = [COLUMNS, ROWS] * len(shapes)
    return partitioned(function, arguments, inputs, [WHOLE] * len(shapes), [WHOLE] * len(shapes))


def test_small_sums_are_one_array():
    program = sums((4, 6), (2, 3), (5, 1))
    assert elements(program, joined=False) == [[24, 6, 5]]
    assert elements(program) == [[35]]


def test_an_array_that_takes_long_to_copy_is_left_alone():
    assert elements(sums((4, 6), (LARGE, LARGE), (2, 3))) == [[LARGE * LARGE, 30]]


def test_a_single_small_array_is_left_alone():
    assert elements(sums((4, 6), (LARGE, LARGE))) == [[24, LARGE * LARGE]]


def test_a_program_says_how_many_of_its_arrays_are_large_and_small():
    (collective,) = sums((4, 6), (LARGE, LARGE), (2, 3)).collectives
    assert (collective.large_arrays, collective.small_arrays, collective.small_bytes) == (1, 2, 4 * (24 + 6))


def test_of_small_gathers_a_program_says_what_they_have_together():
    arrays = [np.ones((8, 4), np.float32), np.ones((4, 8), np.float32)]
    (gathers,) = partitioned(lambda x, v: (x, v), arrays, [ROWS] * 2, [WHOLE] * 2, []).collectives
    assert (gathers.small_arrays, gathers.small_bytes) == (2, 2 * 4 * 32)


def test_small_gathers_are_one_array():
    arrays = [np.ones((8, 4), np.float32), np.ones((4, 8), np.float32)]
    program = partitioned(lambda x, v: (x, v), arrays, [ROWS] * 2, [WHOLE] * 2, [])
    assert elements(program, joined=False) == [[8, 8]]
    assert elements(program) == [[16]]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=2, max_size=4), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_joining_changes_no_value_however_each_value_is_sharded(shapes: list[tuple[int, int]], seed: int):
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(8 * rows, 8 * columns)).astype(np.float32) for rows, columns in shapes]

    def function(*values):
        return tuple(jnp.sin(each) for each in values), tuple((each @ each.T).sum(0) for each in values)

    module = annotate_randomly(lower(function, arrays), MESH_2X4, seed)
    module.solved = True
    assert_parts_equal(run(module, partition(module), arrays), values_of(function, arrays))


def test_a_module_says_whether_its_arrays_are_joined():
    programs = sums((4, 6), (2, 3)), sums((4, 6), (LARGE, LARGE))
    assert [mlir.edit(program.bytecode, is_joined)[1] for program in programs] == [True, False]
