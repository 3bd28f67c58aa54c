"""How alpa's `ShardingSpec` says where an array lies: as alpa says it where it can, and always the same parts."""

import itertools

import jax
import pytest
from alpa.shard_parallel.auto_sharding import hlo_sharding_to_sharding_spec

from alpa_cfp.spmd.module.hlo_module import HloSharding
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh
from alpa_on_jax.jax.interpreters.pxla import Chunked, NoSharding, Replicated, ShardedAxis, ShardingSpec

MESH = LogicalMesh((2, 4))
FIRST, SECOND = MESH.axes
# The second axis in two parts.
MAJOR, MINOR = Axis(1, 1, 2), Axis(1, 2, 2)
ARRAY = jax.core.ShapedArray((16, 24), "float32")


def spec_of(*dims: tuple[Axis, ...], mesh: LogicalMesh = MESH) -> ShardingSpec:
    """Of an array whose dims are split along these mesh axes."""
    return hlo_sharding_to_sharding_spec(HloSharding(ArraySharding(mesh, dims).to_proto()), ARRAY, mesh.shape)


def test_a_dim_over_both_axes_is_cut_once_as_it_is_on_a_mesh_of_one_axis() -> None:
    line = LogicalMesh((8, 1))
    assert spec_of((FIRST, SECOND), ()) == ShardingSpec([Chunked([8]), NoSharding()], [ShardedAxis(0)])
    assert spec_of((FIRST, SECOND), ()) == spec_of(line.axes, (), mesh=line)


def test_a_dim_over_both_axes_in_the_other_order_is_cut_twice() -> None:
    assert spec_of((SECOND, FIRST), ()) == ShardingSpec(
        [Chunked([4, 2]), NoSharding()], [ShardedAxis(1), ShardedAxis(0)]
    )


def test_devices_at_unequal_distances_that_hold_the_same_part_are_named_by_their_axes() -> None:
    assert spec_of((MAJOR,), ()) == ShardingSpec(
        [Chunked([2]), NoSharding()], [Replicated(2), ShardedAxis(0), Replicated(2)]
    )


@pytest.mark.parametrize("axes", [MESH.axes, (FIRST, MAJOR, MINOR)], ids=["whole axes", "parts of an axis"])
def test_each_device_gets_the_part_that_the_sharding_gives_it(axes: tuple[Axis, ...]) -> None:
    for count in range(len(axes) + 1):
        for order in itertools.permutations(axes, count):
            for cut in range(count + 1):
                dims = (order[:cut], order[cut:])
                sharding = ArraySharding(MESH, dims)
                rows, columns = (size // sharding.num_shards(dim) for dim, size in enumerate(ARRAY.shape))
                for device, (row, column) in enumerate(spec_of(*dims).indices(ARRAY.shape).flatten()):
                    starts = (
                        MESH.linear_coordinate(device, dims[0]) * rows,
                        MESH.linear_coordinate(device, dims[1]) * columns,
                    )
                    assert (row.start or 0, column.start or 0) == starts, dims
