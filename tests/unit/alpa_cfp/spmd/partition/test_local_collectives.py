"""Resharding: every collective that Shardy inserts moves the parts to where the new sharding wants them."""

import itertools
import random

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.partition import PartitionedProgram
from alpa_cfp.spmd.partition.shardy import localize
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis
from unit.alpa_cfp.spmd.helpers import (
    MESH_2X2,
    MESH_2X4,
    MESHES,
    Case,
    all_shardings,
    annotate,
    assert_partitioned_right,
    assert_parts_equal,
    random_sharding,
    run,
    split,
)

pytestmark = pytest.mark.slow

VALUE = np.arange(128, dtype=np.float32).reshape(8, 16)
IDENTITY = Case(lambda x: x, (VALUE,))
X, Y, Y_MAJOR, Y_MINOR = Axis(0, 1, 2), Axis(1, 1, 4), Axis(1, 1, 2), Axis(1, 2, 2)


def _reshard(before: ArraySharding, after: ArraySharding, case: Case = IDENTITY) -> list[str]:
    """The kinds of the collectives that bring `before` to `after`, which has been checked to be right."""
    module = annotate(case.module(), before.mesh, [before], [after])
    program = assert_partitioned_right(module, case.arguments, case.expected())
    assert program.partitioner == "shardy"
    return [collective.kind for collective in program.collectives]


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        (("xy", ""), ("", ""), ["all-gather"]),
        (("yx", ""), ("y", ""), ["all-gather"]),
        (("", ""), ("x", "y"), []),  # each device cuts its part out of the whole
        (("x", ""), ("xy", ""), []),
        (("y", ""), ("", "y"), ["all-to-all"]),
        (("x", "y"), ("xy", ""), ["all-to-all"]),
        (("x", "y"), ("y", "x"), None),
        (("xy", ""), ("yx", ""), ["collective-permute"]),
        (("x", ""), ("y", ""), None),
    ],
)
def test_parts_move_to_where_the_new_sharding_wants_them(before, after, kinds):
    found = _reshard(split(MESH_2X4, *before), split(MESH_2X4, *after))
    assert kinds is None or found == kinds


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (((Y_MAJOR,), ()), ((Y_MINOR,), ())),
        (((Y_MINOR, Y_MAJOR), ()), ((Y,), ())),
        (((Y_MINOR,), (Y_MAJOR,)), ((Y_MAJOR,), (X, Y_MINOR))),
        (((Y,), ()), ((), (Y_MINOR,))),
        (((X, Y_MINOR), ()), ((), (Y_MINOR, X))),
        (((Y_MAJOR, X, Y_MINOR), ()), ((), ())),
    ],
)
def test_parts_of_a_mesh_axis_move_as_axes_of_their_own(before, after):
    _reshard(ArraySharding(MESH_2X4, before), ArraySharding(MESH_2X4, after))


def test_every_resharding_on_a_small_mesh_is_right():
    value = np.arange(32, dtype=np.float32).reshape(4, 8)
    case = Case(lambda x: x, (value,))
    shardings = [*all_shardings(MESH_2X2, value.shape), split(MESH_2X2, "yx", ""), split(MESH_2X2, "", "yx")]
    for before, after in itertools.product(shardings, repeat=2):
        _reshard(before, after, case)


@given(seed=st.integers(0, 2**16), shape=st.sampled_from([(8,), (16, 8), (8, 4, 8), (2, 8, 2, 8)]))
@settings(max_examples=25)
def test_any_resharding_is_right(seed, shape):
    rng = random.Random(seed)
    mesh = rng.choice(MESHES)
    case = Case(lambda x: x, (np.arange(np.prod(shape), dtype=np.float32).reshape(shape),))
    _reshard(random_sharding(rng, mesh, shape), random_sharding(rng, mesh, shape), case)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "bfloat16", "complex64"])
def test_every_element_type_moves(dtype):
    value = (np.arange(128) % 5).astype(np.dtype(dtype) if dtype != "bfloat16" else jnp.bfloat16).reshape(8, 16)
    case = Case(lambda x: x, (value,))
    for before, after in ((("xy", ""), ("", "")), (("x", "y"), ("y", "x")), (("y", ""), ("", "y"))):
        _reshard(split(MESH_2X4, *before), split(MESH_2X4, *after), case)


REDUCE_SCATTER = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func public @main(
    %a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>},
    %b: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}
) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>}
      : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  %1 = sdy.reduce_scatter [{"y"}, {}] %0 out_sharding=<@mesh, [{"y"}, {}]> : tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}
"""


def test_a_sum_of_which_every_device_keeps_a_part_is_reduced_and_cut_at_once():
    with mlir.context(), ir.Location.unknown():
        module = mlir.parse(REDUCE_SCATTER)
        inputs, outputs = annotations.boundary(mlir.main_function(module), MESH_2X4)
        collectives = localize(module, MESH_2X4, inputs, outputs)
        program = PartitionedProgram("shardy", mlir.to_bytecode(module), MESH_2X4, inputs, outputs, ((),), collectives)
    assert [collective.kind for collective in collectives] == ["reduce-scatter"]
    case = Case(lambda a, b: a @ b, (VALUE, VALUE.T.copy()))
    assert_parts_equal(run(case.module(), program, case.arguments), case.expected())


def test_a_sum_that_is_then_split_is_right():
    case = Case(lambda a, b: a @ b, (VALUE, VALUE.T.copy()))
    inputs = [split(MESH_2X4, "", "y"), split(MESH_2X4, "y", "")]
    module = annotate(case.module(), MESH_2X4, inputs, [split(MESH_2X4, "y", "x")])
    assert_partitioned_right(module, case.arguments, case.expected())


def test_the_size_of_a_collective_is_that_of_one_devices_operand():
    module = annotate(IDENTITY.module(), MESH_2X4, [split(MESH_2X4, "y", "")], [split(MESH_2X4, "", "")])
    (gather,) = assert_partitioned_right(module, IDENTITY.arguments, IDENTITY.expected()).collectives
    assert (gather.kind, gather.size_bytes, gather.group_size) == ("all-gather", VALUE.nbytes // 4, 4)
