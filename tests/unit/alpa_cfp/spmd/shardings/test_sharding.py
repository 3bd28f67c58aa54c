"""An array's sharding, and its forms: protos, Shardy's text, local shapes, groups of devices."""

import itertools
import math
import random
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib import xla_client as xc

from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh, merged, parse_axes, parse_axis_lists
from unit.alpa_cfp.spmd.helpers import MESH_2X4, MESHES, all_shardings, random_sharding, split

SHAPE = (16, 8, 32)
shardings = st.builds(
    lambda mesh, seed: random_sharding(random.Random(seed), mesh, SHAPE),
    st.sampled_from([*MESHES, LogicalMesh((1, 8)), LogicalMesh((2, 2, 2)), LogicalMesh((4, 1, 2))]),
    st.integers(0, 2**32),
)


def _part(sharding: ArraySharding, device: int) -> tuple[int, ...]:
    return tuple(sharding.mesh.linear_coordinate(device, axes) for axes in sharding.dims)


@given(shardings)
def test_a_proto_comes_back_as_the_same_placement(sharding):
    back = ArraySharding.from_proto(sharding.mesh, sharding.to_proto(), len(SHAPE))
    assert back is not None
    for device in range(sharding.mesh.num_devices):
        assert _part(back, device) == _part(sharding, device)


@given(shardings)
def test_a_proto_never_is_in_iota_form(sharding):
    proto = sharding.to_proto()
    assert sharding.is_replicated or len(proto.tile_assignment_devices) == sharding.mesh.num_devices


@given(shardings)
def test_shardys_text_comes_back_as_the_same_sharding(sharding):
    assert ArraySharding.from_sdy(sharding.mesh, sharding.to_sdy(), len(SHAPE)) == sharding


@given(shardings)
def test_the_parts_of_all_devices_make_up_the_array(sharding):
    local = sharding.local_shape(SHAPE)
    parts = {_part(sharding, device) for device in range(sharding.mesh.num_devices)}
    assert len(parts) * math.prod(local) == math.prod(SHAPE)
    assert parts == set(itertools.product(*(range(n // size) for n, size in zip(SHAPE, local, strict=True))))


@given(shardings)
def test_groups_partition_the_devices_and_hold_what_differs_along_the_axes_only(sharding):
    mesh, axes = sharding.mesh, sharding.axes
    groups = mesh.groups(axes)
    assert sorted(itertools.chain(*groups)) == list(range(mesh.num_devices))
    others = mesh.remaining(axes)
    for group in groups:
        assert [mesh.linear_coordinate(device, axes) for device in group] == list(range(len(group)))
        assert len({mesh.linear_coordinate(device, others) for device in group}) == 1


@given(shardings)
def test_used_and_remaining_axes_together_are_the_whole_mesh(sharding):
    rest = sharding.mesh.remaining(sharding.axes)
    assert math.prod(axis.size for axis in (*sharding.axes, *rest)) == sharding.mesh.num_devices
    assert not any(a.overlaps(b) for a, b in itertools.product(sharding.axes, rest))


@pytest.mark.parametrize("spec", [("x", "y"), ("y", None), (("y", "x"),), (None, ("x", "y")), ()])
def test_protos_in_iota_form_are_read(spec):
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))
    proto = NamedSharding(mesh, PartitionSpec(*spec))._to_xla_hlo_sharding(2).to_proto()
    names = ["".join([*(dim or ())]) for dim in (*spec, *[None] * (2 - len(spec)))]
    assert ArraySharding.from_proto(MESH_2X4, proto, 2) == split(MESH_2X4, *names)


def test_alpas_undefined_sharding_is_none():
    proto = xc.OpSharding()
    proto.type = xc.OpSharding.Type.MANUAL
    assert ArraySharding.from_proto(MESH_2X4, proto, 2) is None


def _tiles(dims: list[int], devices: list[int]) -> Any:
    proto = xc.OpSharding()
    proto.type = xc.OpSharding.Type.OTHER
    proto.tile_assignment_dimensions, proto.tile_assignment_devices = dims, devices
    return proto


def test_a_sharding_over_another_number_of_devices_is_refused():
    with pytest.raises(ValueError, match="over 4 devices"):
        ArraySharding.from_proto(MESH_2X4, _tiles([4, 1], [0, 1, 2, 3]), 2)


def test_a_placement_that_no_axes_describe_is_refused():
    with pytest.raises(ValueError, match="does not follow the axes"):
        ArraySharding.from_proto(MESH_2X4, _tiles([8, 1], [0, 1, 2, 3, 4, 5, 7, 6]), 2)


def test_a_sharding_of_one_device_is_refused():
    proto = xc.OpSharding()
    proto.type = xc.OpSharding.Type.MAXIMAL
    proto.tile_assignment_dimensions, proto.tile_assignment_devices = [1], [0]
    with pytest.raises(ValueError, match="not supported"):
        ArraySharding.from_proto(MESH_2X4, proto, 2)


def test_coordinates_are_row_major():
    x, y = MESH_2X4.axes
    assert [(MESH_2X4.coordinate(d, x), MESH_2X4.coordinate(d, y)) for d in range(8)] == [
        (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3),
    ]  # fmt: skip


def test_the_parts_of_an_axis_are_major_to_minor():
    major, minor = Axis(1, 1, 2), Axis(1, 2, 2)
    assert [MESH_2X4.coordinate(d, major) for d in range(4)] == [0, 0, 1, 1]
    assert [MESH_2X4.coordinate(d, minor) for d in range(4)] == [0, 1, 0, 1]
    assert MESH_2X4.remaining([major]) == (Axis(0, 1, 2), minor)


def test_parts_that_belong_together_are_one_axis():
    assert merged([Axis(1, 2, 2), Axis(0, 1, 2), Axis(1, 1, 2)]) == MESH_2X4.axes


def test_axes_overlap_where_they_share_devices():
    assert Axis(1, 1, 4).overlaps(Axis(1, 2, 2))
    assert not Axis(1, 1, 2).overlaps(Axis(1, 2, 2))
    assert not Axis(0, 1, 2).overlaps(Axis(1, 1, 4))


def test_a_dim_that_is_not_divided_has_no_local_shape():
    sharding = split(MESH_2X4, "y", "")
    assert sharding.local_shape((8, 3)) == (2, 3)
    with pytest.raises(ValueError, match="dim 0 of size 6"):
        sharding.local_shape((6, 3))
    assert sharding.dividing((6, 3)).is_replicated
    assert not sharding.divides((6, 3))


def test_axes_of_size_one_never_appear():
    mesh = LogicalMesh((1, 8))
    assert parse_axes(mesh, '{"x", "y"}') == (Axis(1, 1, 8),)
    assert all(axis.index == 1 for sharding in all_shardings(mesh, (8, 8)) for axis in sharding.axes)


def test_open_dims_and_parts_of_axes_are_read_from_shardys_text():
    assert parse_axis_lists(MESH_2X4, '[{"x", ?}, {"y":(2)2}p1, {?}]') == ((Axis(0, 1, 2),), (Axis(1, 2, 2),), ())


def test_a_sharding_of_another_rank_is_refused():
    with pytest.raises(ValueError, match="2 dims for a tensor of rank 3"):
        ArraySharding.from_sdy(MESH_2X4, '<@mesh, [{"x"}, {}]>', 3)


def test_a_mesh_of_too_many_axes_is_refused():
    with pytest.raises(ValueError, match="at most 8 axes, not 9"):
        _ = LogicalMesh((*[1] * 8, 8)).axis_names
