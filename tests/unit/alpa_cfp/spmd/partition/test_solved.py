"""Where the sharding of every op is decided, the devices communicate what follows from it and nothing else."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import optimization_barrier as reshard

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.combiner_limits import CombinerLimits
from alpa_cfp.spmd.partition import partition, partition_to_run
from alpa_cfp.spmd.partition.xla import leave_to_xla
from alpa_cfp.spmd.shardings.sharding import Axis
from unit.alpa_cfp.spmd.helpers import MESH_2X4, assert_parts_equal, run, split, values_of
from unit.alpa_cfp.spmd.partition.solved_programs import kinds, partitioned, solve

pytestmark = pytest.mark.slow

X, W = (np.random.default_rng(3).normal(size=shape).astype(np.float32) for shape in ((8, 16), (16, 8)))
WHOLE = split(MESH_2X4, "", "")


def s(first: str, second: str):
    return split(MESH_2X4, first, second)


@pytest.mark.parametrize(
    ("x", "w", "dot", "expected"),
    [
        pytest.param(s("", ""), s("", "y"), s("", "y"), [], id="columns_of_the_kernel"),
        pytest.param(s("x", ""), s("", "y"), s("x", "y"), [], id="rows_and_columns"),
        pytest.param(s("xy", ""), s("", ""), s("xy", ""), [], id="rows_over_both_axes"),
        pytest.param(s("", "y"), s("y", ""), s("", ""), [("all-reduce", 4)], id="contraction"),
        pytest.param(s("x", "y"), s("y", ""), s("x", ""), [("all-reduce", 4)], id="rows_and_contraction"),
        pytest.param(s("", "xy"), s("xy", ""), s("", ""), [("all-reduce", 8)], id="contraction_over_both_axes"),
    ],
)
def test_a_dot_communicates_where_its_contraction_is_split(x, w, dot, expected):
    program = partitioned(lambda x, w: x @ w, (X, W), [x, w], [dot], [dot])
    assert [(each.kind, each.group_size) for each in program.collectives] == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(s("x", ""), s("", ""), ["all-gather"], id="gather"),
        pytest.param(s("xy", ""), s("x", ""), ["all-gather"], id="gather_one_of_two_axes"),
        pytest.param(s("", ""), s("", "y"), [], id="slice"),
        pytest.param(s("y", ""), s("", "y"), ["all-to-all"], id="from_dim_to_dim"),
        pytest.param(s("x", "y"), s("xy", ""), ["all-to-all"], id="onto_a_split_dim"),
        pytest.param(s("xy", ""), s("yx", ""), ["collective-permute"], id="another_order"),
        pytest.param(s("x", "y"), s("x", "y"), [], id="the_same"),
    ],
)
def test_a_constraint_is_one_collective(before, after, expected):
    program = partitioned(lambda x: jnp.tanh(reshard(jnp.exp(x))), (X,), [before], [after], [before, after, after])
    assert kinds(program) == expected


def test_a_value_that_several_ops_need_whole_is_gathered_once():
    def function(x):
        y = -x
        return jnp.exp(reshard(y)), jnp.tanh(reshard(y))

    rows = s("x", "")
    assert kinds(partitioned(function, (X,), [rows], [WHOLE] * 2, [rows, *[WHOLE] * 4])) == ["all-gather"]


def test_a_parameter_that_two_ops_need_whole_is_gathered_for_each():
    # Up to the limit, which keeps the gather of the backward pass from that of the forward pass, one does for both.
    rows = s("x", "")

    def communication(limits: CombinerLimits) -> list[tuple[str, int]]:
        program = partitioned(
            lambda x: (jnp.exp(reshard(x)), jnp.tanh(reshard(x))), (X,), [rows], [WHOLE] * 2, [WHOLE] * 4, limits
        )
        return [(each.kind, each.size_bytes) for each in program.collectives]

    part_bytes = 4 * 16 * 4
    assert communication(CombinerLimits()) == [("all-gather", part_bytes)]
    assert communication(CombinerLimits(all_gather_bytes=2 * part_bytes)) == [("all-gather", part_bytes)] * 2


def test_what_is_left_open_follows_its_users():
    both = s("x", "y")
    program = partitioned(lambda x: x * 3, (X,), [both], [both], [both])
    assert kinds(program) == []


def test_a_solved_program_that_is_only_run_is_partitioned_as_it_says():
    module = solve(lambda x, w: x @ w, (X, W), [WHOLE, s("", "y")], [s("", "y")], [s("", "y")])
    assert partition_to_run(module).partitioner == "shardy"


def test_dims_along_which_an_op_works_are_gathered_for_it():
    def function(x):
        return x[:, 2:10] + 1

    columns = s("", "y")
    program = partitioned(function, (X,), [columns], [columns], [columns, columns])
    assert kinds(program) == ["all-gather"]


def test_xlas_partitioner_is_told_every_decision():
    module = solve(lambda x, w: jnp.tanh(x @ w), (X, W), [WHOLE, WHOLE], [WHOLE], [s("x", "y"), s("y", "x")])
    program = leave_to_xla(module, "asked for")
    with mlir.context():
        text = mlir.to_text(mlir.parse(program.bytecode))
    assert text.count("sdy.sharding_constraint") == 2
    assert '<@mesh, [{"x"}, {"y"}]>' in text
    assert '<@mesh, [{"y"}, {"x"}]>' in text
    assert_parts_equal(run(module, program, (X, W)), values_of(lambda x, w: jnp.tanh(x @ w), (X, W)))


def test_an_axis_may_be_split_over_two_dims():
    halves = (Axis(1, 1, 2),), (Axis(1, 2, 2),)
    before = type(WHOLE)(MESH_2X4, halves)
    program = partitioned(lambda x: reshard(x), (X,), [before], [s("y", "")], [s("y", "")])
    assert kinds(program) == ["all-to-all"]


def test_a_program_that_is_not_solved_combines_nothing():
    module = solve(lambda x, w: (x @ w, (x * 2) @ w), (X, W), [s("", "y"), s("y", "")], [WHOLE] * 2, [WHOLE] * 3)
    module.solved = False
    assert kinds(partition(module)).count("all-reduce") == 2
