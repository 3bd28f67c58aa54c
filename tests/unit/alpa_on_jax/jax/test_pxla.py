"""Sharding specs against JAX's own NamedSharding, and as values."""

import pickle

import alpa  # noqa: F401
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax._src.lib import xla_client as xc
from jax.interpreters.pxla import (
    Chunked,
    NoSharding,
    Replicated,
    ShardedAxis,
    ShardingSpec,
    Unstacked,
    _hashable_index,
    new_mesh_sharding_specs,
    sharding_spec_sharding_proto,
    spec_to_indices,
)
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_on_jax import errors
from alpa_on_jax.jax.experimental.pjit import ParsedPartitionSpec, get_array_mapping

MESHES = [(8,), (1, 8), (2, 4), (4, 2), (2, 2, 2), (2, 2)]
NAMES = ("x", "y", "z")


@st.composite
def meshes_and_partitions(draw: st.DrawFn) -> tuple[Mesh, PartitionSpec, tuple[int, ...]]:
    shape = draw(st.sampled_from(MESHES))
    names = NAMES[: len(shape)]
    rank = draw(st.integers(1, 3))
    used = draw(st.permutations(names))[: draw(st.integers(0, len(names)))]
    dims: list[list[str]] = [[] for _ in range(rank)]
    for name in used:
        dims[draw(st.integers(0, rank - 1))].append(name)
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    entries = [tuple(axes) if len(axes) > 1 else axes[0] if axes else None for axes in dims]
    return Mesh(devices, names), PartitionSpec(*entries), (16,) * rank


def spec_of(mesh: Mesh, partitions: PartitionSpec, rank: int) -> ShardingSpec:
    mapping = get_array_mapping(ParsedPartitionSpec.from_user_input(partitions, "test"))
    return new_mesh_sharding_specs(dict(mesh.shape), mesh.axis_names)(rank, mapping)


@given(meshes_and_partitions())
def test_each_device_holds_what_named_sharding_gives_it(case: tuple[Mesh, PartitionSpec, tuple[int, ...]]) -> None:
    mesh, partitions, shape = case
    expected = NamedSharding(mesh, partitions).devices_indices_map(shape)
    found = spec_to_indices(shape, spec_of(mesh, partitions, len(shape)))
    for device, index in zip(mesh.devices.flat, found, strict=True):
        assert [s.indices(16) for s in index] == [s.indices(16) for s in expected[device]]


@given(meshes_and_partitions())
def test_the_xla_sharding_is_the_one_of_named_sharding(case: tuple[Mesh, PartitionSpec, tuple[int, ...]]) -> None:
    mesh, partitions, shape = case
    expected = NamedSharding(mesh, partitions)._to_xla_hlo_sharding(len(shape))
    proto = spec_of(mesh, partitions, len(shape)).sharding_proto()
    assert xc.HloSharding.from_proto(proto) == expected


@given(meshes_and_partitions())
def test_indices_have_the_shape_of_the_mesh(case: tuple[Mesh, PartitionSpec, tuple[int, ...]]) -> None:
    mesh, partitions, shape = case
    spec = spec_of(mesh, partitions, len(shape))
    assert spec.mesh_shape == spec.indices(shape).shape == mesh.devices.shape


def test_specs_are_equal_only_in_the_same_order() -> None:
    one = ShardingSpec([NoSharding(), Chunked([4])], [Replicated(2), ShardedAxis(0)])
    assert one == ShardingSpec((NoSharding(), Chunked((4,))), (Replicated(2), ShardedAxis(0)))
    assert one != ShardingSpec([NoSharding(), Chunked([4])], [ShardedAxis(0), Replicated(2)])
    assert hash(one) == hash(ShardingSpec((NoSharding(), Chunked((4,))), (Replicated(2), ShardedAxis(0))))


def test_a_spec_survives_pickling() -> None:
    spec = ShardingSpec([NoSharding(), Chunked([2, 4]), Unstacked(3)], [Replicated(2), ShardedAxis(0)])
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_a_spec_is_written_as_alpa_writes_it() -> None:
    spec = ShardingSpec([NoSharding(), Chunked([2, 4])], [ShardedAxis(0), Replicated(2)])
    assert repr(spec) == "ShardingSpec((NoSharding(), Chunked(2,4)), (ShardedAxis(axis=0), Replicated(replicas=2)))"


def test_an_unstacked_dim_is_gone_in_the_parts_and_has_no_xla_sharding() -> None:
    spec = ShardingSpec([Unstacked(2), NoSharding()], [ShardedAxis(0)])
    assert spec_to_indices((2, 4), spec) == ((0, slice(None)), (1, slice(None)))
    with pytest.raises(errors.ShardingOptionError, match="Unstacked"):
        sharding_spec_sharding_proto(spec)


def test_a_dim_that_its_chunks_do_not_divide_is_an_error_that_names_both() -> None:
    with pytest.raises(errors.ShardingOptionError, match="dim 0 of length 6 cannot be cut into 4"):
        ShardingSpec([Chunked([4])], [ShardedAxis(0)]).indices((6,))


def test_special_axes_get_their_own_kind_of_copies() -> None:
    spec = ShardingSpec([Chunked([2]), NoSharding()], [ShardedAxis(0), Replicated(4)])
    proto = spec.sharding_proto(special_axes={1: xc.OpSharding.Type.MANUAL})
    assert list(proto.last_tile_dims) == [xc.OpSharding.Type.MANUAL]
    assert list(proto.tile_assignment_dimensions) == [2, 1, 4]


def test_an_index_can_be_hashed() -> None:
    assert hash(_hashable_index((slice(0, 2), 3))) == hash(((0, 2, None), 3))
