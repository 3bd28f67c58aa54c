"""Collectives that do not need each other are made together: how many are left, and that the programs are right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.lax import optimization_barrier as reshard

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.combiner_limits import CombinerLimits
from alpa_cfp.spmd.partition import partition
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from unit.alpa_cfp.spmd.helpers import (
    MESH_2X4,
    annotate,
    annotate_randomly,
    assert_parts_equal,
    lower,
    run,
    split,
    values_of,
)
from unit.alpa_cfp.spmd.partition.solved_programs import kinds, partitioned

pytestmark = pytest.mark.slow

_RNG = np.random.default_rng(4)
X, V, W = (_RNG.normal(size=shape).astype(np.float32) for shape in ((8, 16), (16, 8), (16, 24)))
WHOLE = split(MESH_2X4, "", "")
ROWS, COLUMNS = split(MESH_2X4, "y", ""), split(MESH_2X4, "", "y")
CONTRACTED = [COLUMNS, ROWS, ROWS]


def test_sums_of_independent_contractions_are_one_all_reduce():
    program = partitioned(lambda x, v, w: (x @ v, x @ w), (X, V, W), CONTRACTED, [WHOLE] * 2, [WHOLE] * 2)
    assert [(each.kind, each.size_bytes) for each in program.collectives] == [("all-reduce", 8 * (8 + 24) * 4)]


def test_a_sum_that_needs_another_is_made_after_it():
    def function(x, v, w):
        return jnp.tanh(x @ v) @ v.T @ w

    shardings = [WHOLE, WHOLE, COLUMNS, COLUMNS, WHOLE]
    assert kinds(partitioned(function, (X, V, W), CONTRACTED, [WHOLE], shardings)) == ["all-reduce"] * 2


def test_what_would_need_itself_if_two_pairs_were_combined_is_one_pair():
    # The first sum needs the first maximum, the second maximum needs the second sum.
    def function(x, v, w):
        low = x.max(1)
        high = (x * v.sum(0)[:, None]).max(1)
        return (x * low[:, None]).sum(1), high, w

    row = split(MESH_2X4, "")
    program = partitioned(
        function,
        (X, V, W),
        CONTRACTED,
        [row, row, ROWS],
        [row, row, COLUMNS, row, COLUMNS, row],
    )
    assert kinds(program) == ["all-reduce"] * 3


def test_sums_over_different_devices_or_of_different_types_stay_apart():
    def function(x, v, w):
        return x @ v, x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16), x.sum(0)

    half = split(MESH_2X4, "x", "y")
    rows = split(MESH_2X4, "x", "")
    program = partitioned(
        function,
        (X, V, W),
        [half, ROWS, ROWS],
        [rows, rows, split(MESH_2X4, "y")],
        [rows, half, ROWS, rows, split(MESH_2X4, "y")],
    )
    assert kinds(program) == ["all-reduce"] * 3


def test_parts_that_are_gathered_along_different_dims_stay_apart():
    program = partitioned(lambda x, v: (reshard(x), reshard(v)), (X, V), [COLUMNS, ROWS], [WHOLE] * 2, [WHOLE] * 2)
    assert kinds(program) == ["all-gather"] * 2


def test_rows_of_parts_that_are_gathered_along_another_dim_are_one_all_gather():
    program = partitioned(lambda x, w: (reshard(x), reshard(w)), (X, W), [COLUMNS, COLUMNS], [WHOLE] * 2, [WHOLE] * 2)
    assert [(each.kind, each.size_bytes) for each in program.collectives] == [
        ("all-gather", (8 * 16 + 16 * 24) // 4 * 4)
    ]


def test_parts_that_are_gathered_along_one_dim_are_gathered_as_they_are():
    program = partitioned(lambda v, w: (reshard(v), reshard(w)), (V, W), [ROWS, ROWS], [WHOLE] * 2, [WHOLE] * 2)
    assert [(each.kind, each.size_bytes) for each in program.collectives] == [("all-gather", 4 * (8 + 24) * 4)]


def test_gathers_of_arrays_with_dims_of_size_1_are_right_together():
    # XLA laid the first array, whose dim in the middle has size 1, out with that dim first, and the other one, too.
    def function(x, y, z):
        return jnp.einsum("abc,bac->", jnp.clip(x, -1, 1), jnp.clip(y, -1, 1))

    arrays = [_RNG.uniform(-2, 2, shape).astype(np.float32) for shape in ((8, 2, 2), (2, 8, 2), (2, 8, 2))]
    module = annotate_randomly(lower(function, arrays), LogicalMesh((2, 2)), 34)
    module.solved = True
    program = partition(module)
    assert program.partitioner == "shardy"
    assert_parts_equal(run(module, program, arrays), values_of(function, arrays))


def test_gathers_are_combined_as_arrays_of_one_dim():
    program = partitioned(lambda x, v, w: (x, v, w), (X, V, W), [ROWS] * 3, [WHOLE] * 3, [])
    assert kinds(program) == ["all-gather"]
    with mlir.context():
        module = mlir.parse(program.bytecode)
        (gather,) = (op for op in mlir.walk(mlir.entry_block(mlir.main_function(module))) if "all_gather" in op.name)
        assert [mlir.tensor_type(value).rank for value in gather.operands] == [1] * 3


def test_parts_of_sums_are_one_reduce_scatter_where_they_are_split_along_one_dim():
    program = partitioned(
        lambda x, v, w: (reshard(x @ v), reshard(x @ w)),
        (X, V, W),
        CONTRACTED,
        [COLUMNS] * 2,
        [WHOLE, COLUMNS, WHOLE, COLUMNS],
    )
    assert [(each.kind, each.size_bytes) for each in program.collectives] == [("reduce-scatter", 8 * (8 + 24) * 4)]


@pytest.mark.parametrize(("largest", "expected"), [(8 * 24 * 4, 1), (8 * 24 * 4 - 1, 2)])
def test_sums_that_would_take_long_to_copy_are_scattered_on_their_own(largest, expected):
    program = partitioned(
        lambda x, v, w: (reshard(x @ v), reshard(x @ w)),
        (X, V, W),
        CONTRACTED,
        [COLUMNS] * 2,
        [WHOLE, COLUMNS, WHOLE, COLUMNS],
        CombinerLimits(scattered_bytes=largest),
    )
    assert kinds(program) == ["reduce-scatter"] * expected


def test_parts_of_sums_that_are_split_along_different_dims_stay_apart():
    program = partitioned(
        lambda x, v, w: (reshard(x @ v), reshard(x @ w)),
        (X, V, W),
        CONTRACTED,
        [ROWS, COLUMNS],
        [WHOLE, ROWS, WHOLE, COLUMNS],
    )
    assert kinds(program) == ["reduce-scatter"] * 2


def test_what_uses_a_sum_before_the_last_input_is_ready_comes_after_the_combined_one():
    def function(x, v, w):
        early = jnp.exp(x @ v)
        late = jnp.tanh(x) @ w
        return early.sum(), late

    shardings = [WHOLE, WHOLE, COLUMNS, WHOLE, split(MESH_2X4)]
    assert kinds(partitioned(function, (X, V, W), CONTRACTED, [split(MESH_2X4), WHOLE], shardings)) == ["all-reduce"]


@pytest.mark.parametrize(("limit_bytes", "expected"), [(8 * 32 * 4, 1), (8 * 32 * 4 - 1, 2), (0, 2)])
def test_sums_are_combined_up_to_the_limit(limit_bytes, expected):
    limits = CombinerLimits(all_gather_bytes=0, all_reduce_bytes=limit_bytes)
    program = partitioned(lambda x, v, w: (x @ v, x @ w), (X, V, W), CONTRACTED, [WHOLE] * 2, [WHOLE] * 2, limits)
    assert len(program.collectives) == expected


def test_gathers_have_a_limit_of_their_own():
    limits = CombinerLimits(all_gather_bytes=0)
    program = partitioned(lambda v, w: (reshard(v), reshard(w)), (V, W), [ROWS, ROWS], [WHOLE] * 2, [WHOLE] * 2, limits)
    assert kinds(program) == ["all-gather"] * 2


def _mlp_step(kernels, x):
    def loss(kernels):
        y = x
        for kernel in kernels:
            y = jnp.tanh(y @ kernel)
        return ((y - x) ** 2).mean()

    return [kernel - 0.1 * grad for kernel, grad in zip(kernels, jax.grad(loss)(kernels), strict=True)]


@pytest.mark.parametrize(("layers", "alternate", "expected"), [(6, False, 1), (6, True, 5), (4, True, 3)])
def test_an_mlp_communicates_as_often_as_alpas_tests_say(layers, alternate, expected):
    mesh = LogicalMesh((1, 4))
    kernels = [_RNG.normal(size=(16, 16)).astype(np.float32) / 4 for _ in range(layers)]
    x = X

    def function(*arguments):
        return _mlp_step(arguments[:-1], arguments[-1])

    shardings = [
        split(mesh, *(("", "y") if number % 2 == 0 else ("y", "")) if alternate else ("", ""))
        for number in range(layers)
    ]
    batch = split(mesh, "", "") if alternate else split(mesh, "y", "")
    module = annotate(lower(function, (*kernels, x)), mesh, [*shardings, batch], shardings)
    module.solved = True
    program = partition(module)
    assert kinds(program) == ["all-reduce"] * expected
    assert_parts_equal(run(module, program, (*kernels, x)), values_of(function, (*kernels, x)))


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_combining_changes_no_value_however_each_value_is_sharded(seed):
    def function(x, v, w):
        left, right = x @ v, x @ w
        return jnp.tanh(left) @ left.T, right.sum(0), (v.T @ w).max(1), left.sum()

    module = annotate_randomly(lower(function, (X, V, W)), MESH_2X4, seed)
    module.solved = True
    assert_parts_equal(run(module, partition(module), (X, V, W)), values_of(function, (X, V, W)))
