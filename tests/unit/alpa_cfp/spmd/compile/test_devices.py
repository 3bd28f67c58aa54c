"""From a sharding to the devices that hold the parts of an array."""

import random

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.spmd.compile.devices import named_sharding, replicated_sharding
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh
from unit.alpa_cfp.spmd.helpers import MESH_2X4, MESH_8X1, MESHES, random_sharding, split

DEVICES = tuple(jax.devices())
VALUE = np.arange(16 * 8).reshape(16, 8)


@given(mesh=st.sampled_from(MESHES), seed=st.integers(0, 2**32))
def test_each_device_holds_the_part_that_its_coordinates_say(mesh, seed):
    sharding = random_sharding(random.Random(seed), mesh, VALUE.shape)
    array = jax.device_put(VALUE, named_sharding(DEVICES[: mesh.num_devices], sharding))
    local = sharding.local_shape(VALUE.shape)
    for number, device in enumerate(DEVICES[: mesh.num_devices]):
        starts = [mesh.linear_coordinate(number, axes) * size for axes, size in zip(sharding.dims, local, strict=True)]
        wanted = VALUE[tuple(slice(start, start + size) for start, size in zip(starts, local, strict=True))]
        (shard,) = [shard for shard in array.addressable_shards if shard.device == device]
        np.testing.assert_array_equal(np.asarray(shard.data), wanted)


def test_equal_placements_are_one_object_also_across_logical_meshes():
    whole = named_sharding(DEVICES, split(MESH_2X4, "", ""))
    assert named_sharding(DEVICES, split(MESH_8X1, "", "")) is whole
    assert named_sharding(DEVICES, split(MESH_2X4, "xy", "")) is named_sharding(DEVICES, split(MESH_8X1, "x", ""))
    parts = ArraySharding(MESH_8X1, ((Axis(0, 1, 2),), (Axis(0, 2, 4),)))
    assert named_sharding(DEVICES, parts) is named_sharding(DEVICES, split(MESH_2X4, "x", "y"))


def test_different_placements_are_different():
    one, other = (named_sharding(DEVICES, split(MESH_2X4, *dims)) for dims in (("xy", ""), ("yx", "")))
    assert one != other
    assert named_sharding(DEVICES, split(MESH_2X4, "", "")) is not named_sharding(DEVICES, split(MESH_2X4, ""))
    assert named_sharding(DEVICES[::-1], split(MESH_2X4, "x")) != named_sharding(DEVICES, split(MESH_2X4, "x"))


def test_a_replicated_array_is_whole_on_every_device():
    array = jax.device_put(VALUE, replicated_sharding(DEVICES, LogicalMesh((1, 8))))
    assert [shard.data.shape for shard in array.addressable_shards] == [VALUE.shape] * 8
