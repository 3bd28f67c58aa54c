"""A sum of which each device keeps a part is one communication: how often programs communicate, and their values."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import optimization_barrier as reshard

from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis
from unit.alpa_cfp.spmd.helpers import MESH_2X4, split
from unit.alpa_cfp.spmd.partition.solved_programs import kinds, partitioned

pytestmark = pytest.mark.slow

X, W = (np.random.default_rng(3).normal(size=shape).astype(np.float32) for shape in ((8, 16), (16, 8)))
WHOLE = split(MESH_2X4, "", "")
INPUTS = [split(MESH_2X4, "", "xy"), split(MESH_2X4, "xy", "")]


def s(first: str, second: str) -> ArraySharding:
    return split(MESH_2X4, first, second)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param(s("xy", ""), [("reduce-scatter", 8)], id="along_all_axes"),
        pytest.param(s("", "yx"), [("reduce-scatter", 8)], id="along_all_axes_in_another_order"),
        pytest.param(s("x", "y"), [("reduce-scatter", 2), ("reduce-scatter", 4)], id="along_two_dims"),
        pytest.param(s("y", ""), [("reduce-scatter", 4), ("all-reduce", 2)], id="along_one_of_two_axes"),
        pytest.param(
            ArraySharding(MESH_2X4, ((), (Axis(1, 2, 2),))),
            [("reduce-scatter", 2), ("all-reduce", 4)],
            id="along_a_part_of_an_axis",
        ),
    ],
)
def test_a_split_sum_is_a_reduce_scatter(parts, expected):
    program = partitioned(lambda x, w: reshard(x @ w), (X, W), INPUTS, [parts], [WHOLE, parts])
    assert [(each.kind, each.group_size) for each in program.collectives] == expected


def test_a_sum_that_is_split_along_an_axis_that_it_is_not_made_over_is_scattered_and_cut():
    rows = s("xy", "")
    program = partitioned(lambda x, w: reshard(x @ w), (X, W), [s("", "x"), s("x", "")], [rows], [WHOLE, rows])
    assert [(each.kind, each.group_size) for each in program.collectives] == [("reduce-scatter", 2)]


def test_a_sum_that_is_cut_along_another_axis_first_is_an_all_reduce():
    rows = s("yx", "")
    program = partitioned(lambda x, w: reshard(x @ w), (X, W), [s("", "x"), s("x", "")], [rows], [WHOLE, rows])
    assert kinds(program) == ["all-reduce"]


def test_a_sum_of_split_rows_is_scattered_within_its_rows():
    program = partitioned(
        lambda x, w: reshard(x @ w),
        (X, W),
        [s("x", "y"), s("y", "")],
        [s("xy", "")],
        [s("x", ""), s("xy", "")],
    )
    assert [(each.kind, each.group_size) for each in program.collectives] == [("reduce-scatter", 4)]


def test_a_sum_that_is_transposed_and_scaled_before_it_is_split_is_scattered():
    def function(x, w):
        return reshard(-jnp.exp(x @ w).T)

    rows = s("xy", "")
    program = partitioned(function, (X, W), INPUTS, [rows], [WHOLE] * 4 + [rows])
    assert kinds(program) == ["reduce-scatter"]


def test_a_sum_that_is_also_used_whole_is_an_all_reduce():
    def function(x, w):
        y = x @ w
        return reshard(y), y

    rows = s("xy", "")
    program = partitioned(function, (X, W), INPUTS, [rows, WHOLE], [WHOLE, rows])
    assert kinds(program) == ["all-reduce"]


def test_a_maximum_is_scattered_as_a_maximum():
    program = partitioned(
        lambda x: reshard(x.max(1)),
        (X,),
        [s("", "y")],
        [split(MESH_2X4, "y")],
        [split(MESH_2X4, ""), split(MESH_2X4, "y")],
    )
    assert kinds(program) == ["reduce-scatter"]
