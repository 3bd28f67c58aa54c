"""The small form of shardings: it means the same placements as `ArraySharding`, also through ops that move data."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh
from alpa_on_jax.xla_extension.auto_sharding import specs
from alpa_on_jax.xla_extension.auto_sharding.specs import BOTH, BOTH_SWAPPED, FIRST, NONE, SECOND, Mesh
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import all_specs, parts, tile

MESHES = [Mesh(shape) for shape in ((4, 1), (2, 2), (1, 2), (2, 4), (4, 2), (3, 2), (1, 1))]
SIZES = (1, 2, 3, 4, 6, 8)
CODES = (NONE, FIRST, SECOND, BOTH, BOTH_SWAPPED)


def _held(mesh: Mesh, spec: specs.Spec, value: np.ndarray) -> list[set[int]]:
    """The elements of `value`, which are their own numbers, that each device holds."""
    return [set(part.ravel().tolist()) for part in parts(mesh, spec, value)]


@st.composite
def _placed(draw: st.DrawFn, ranks: tuple[int, int] = (0, 4)):
    mesh = draw(st.sampled_from(MESHES))
    shape = tuple(draw(st.lists(st.sampled_from(SIZES), min_size=ranks[0], max_size=ranks[1])))
    return mesh, shape, draw(st.sampled_from(all_specs(mesh, len(shape), CODES)))


@st.composite
def _reshapes(draw: st.DrawFn):
    mesh, shape, spec = draw(_placed((1, 4)))
    return mesh, shape, spec, draw(st.sampled_from(_factorizations(math.prod(shape), 4)))


def _factorizations(size: int, rank: int) -> list[tuple[int, ...]]:
    """All shapes of at most `rank` dims with `size` elements."""
    if rank == 0:
        return [()] if size == 1 else []
    shapes = {(d, *rest) for d in range(1, size + 1) if size % d == 0 for rest in _factorizations(size // d, rank - 1)}
    return sorted(shapes | set(_factorizations(size, rank - 1)))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_every_spec_becomes_another_sharding_and_is_read_back_from_it(mesh):
    logical_mesh = LogicalMesh(mesh.shape)
    all_of_them = all_specs(mesh, 3, CODES)
    shardings = [mesh.to_sharding(spec, logical_mesh) for spec in all_of_them]
    assert [mesh.of_sharding(sharding) for sharding in shardings] == all_of_them
    assert len(set(shardings)) == len(shardings)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_different_specs_are_different_placements(mesh):
    value = np.arange(24 * 24).reshape(24, 24)
    placements = [tuple(map(frozenset, _held(mesh, spec, value))) for spec in all_specs(mesh, 2, CODES)]
    assert len(set(placements)) == len(placements)


def test_a_sharding_along_a_part_of_an_axis_has_no_spec():
    sharding = ArraySharding(LogicalMesh((4, 2)), ((Axis(0, 1, 2),), ()))
    assert Mesh((4, 2)).of_sharding(sharding) is None


def test_a_sharding_along_both_axes_with_the_second_one_first_has_a_spec_of_its_own():
    first, second = LogicalMesh((2, 2)).axes
    assert Mesh((2, 2)).of_sharding(ArraySharding(LogicalMesh((2, 2)), ((second, first),))) == (BOTH_SWAPPED,)


@given(_placed())
def test_the_number_of_tiles_is_the_number_of_different_parts_of_a_large_array(case):
    mesh, shape, spec = case
    large = tuple(24 for _ in shape)
    distinct = {tuple((s.start, s.stop) for s in tile(mesh, spec, large, d)) for d in range(mesh.num_devices)}
    assert mesh.num_tiles(spec) == len(distinct)


def test_an_axis_of_one_device_splits_nothing():
    assert Mesh((4, 1)).tile(2, (0, 1), (0, 1)) == (FIRST, NONE)
    assert Mesh((1, 4)).tile(2, (0, 1), (0, 1)) == (NONE, SECOND)


def test_a_dim_over_all_devices_of_a_mesh_with_one_long_axis_is_split_along_that_axis():
    assert Mesh((4, 1)).tile_1d(1, 0) == (FIRST,)
    assert Mesh((1, 4)).tile_1d(1, 0) == (SECOND,)
    assert Mesh((2, 2)).tile_1d(1, 0) == (BOTH,)


@given(_placed(), st.randoms(use_true_random=False))
def test_a_transpose_leaves_every_element_on_its_devices(case, rng):
    mesh, shape, spec = case
    permutation = list(range(len(shape)))
    rng.shuffle(permutation)
    value = np.arange(math.prod(shape)).reshape(shape)
    after = specs.transpose(spec, permutation)
    assert _held(mesh, after, value.transpose(permutation)) == _held(mesh, spec, value)


@given(_placed((0, 3)), st.data())
def test_what_a_device_needs_for_its_part_of_a_broadcast_it_holds(case, data):
    mesh, source_shape, spec = case
    rank = data.draw(st.integers(len(source_shape), 4))
    dims = sorted(data.draw(st.permutations(range(rank)))[: len(source_shape)])
    shape = [data.draw(st.sampled_from(SIZES)) for _ in range(rank)]
    for source, dim in enumerate(dims):
        if source_shape[source] != 1:
            shape[dim] = source_shape[source]
    value = np.arange(math.prod(source_shape)).reshape(source_shape)
    inserted = [1] * rank
    for source, dim in enumerate(dims):
        inserted[dim] = source_shape[source]
    result = np.broadcast_to(value.reshape(inserted), shape)
    held = _held(mesh, spec, value)
    stretched = any(spec[i] and source_shape[i] != shape[dim] for i, dim in enumerate(dims))
    if stretched:  # a dim of size 1 that is split: only one device has it
        return
    for device, needed in enumerate(_held(mesh, specs.broadcast(spec, source_shape, shape, dims), result)):
        assert needed <= held[device]


@given(_reshapes())
def test_a_reshape_with_a_spec_leaves_every_element_on_its_devices(case):
    mesh, before, spec, after = case
    result = specs.reshape(mesh, spec, before, after)
    if result is not None:
        value = np.arange(math.prod(before)).reshape(before)
        assert len(result) == len(after)
        assert _held(mesh, result, value.reshape(after)) == _held(mesh, spec, value)


@given(_placed((1, 3)), st.data())
def test_a_dim_that_a_reshape_takes_apart_takes_its_even_split_along_wherever_that_is_possible(case, data):
    mesh, before, spec = case
    if BOTH_SWAPPED in spec or not mesh.to_sharding(spec, LogicalMesh(mesh.shape)).divides(before):
        return
    after = tuple(part for size in before for part in data.draw(st.sampled_from(_factorizations(size, 2))))
    result = specs.reshape(mesh, spec, before, after)
    if result is None:
        assert not _specs_with_the_same_parts(mesh, spec, before, after)
    else:
        assert specs.reshape(mesh, result, after, before) == spec


def _specs_with_the_same_parts(
    mesh: Mesh, spec: specs.Spec, before: tuple[int, ...], after: tuple[int, ...]
) -> list[specs.Spec]:
    value = np.arange(math.prod(before)).reshape(before)
    held = _held(mesh, spec, value)
    even = [s for s in all_specs(mesh, len(after)) if mesh.to_sharding(s, LogicalMesh(mesh.shape)).divides(after)]
    return [candidate for candidate in even if _held(mesh, candidate, value.reshape(after)) == held]


def test_a_reshape_that_drops_a_dim_of_which_one_device_holds_all_has_no_spec():
    assert specs.reshape(Mesh((2, 2)), (NONE, FIRST, NONE), (1, 1, 2), (1, 2)) is None


def test_a_reshape_that_splits_the_dim_split_over_all_devices_splits_both_new_dims():
    assert specs.reshape(Mesh((2, 4)), (BOTH, NONE), (8, 3), (2, 4, 3)) == (FIRST, SECOND, NONE)
    assert specs.reshape(Mesh((2, 4)), (FIRST, SECOND, NONE), (2, 4, 3), (8, 3)) == (BOTH, NONE)


def test_a_reshape_that_merges_a_minor_split_dim_has_no_spec():
    assert specs.reshape(Mesh((2, 2)), (NONE, FIRST), (4, 4), (16,)) is None
    assert specs.reshape(Mesh((2, 2)), (FIRST, SECOND), (4, 4), (16,)) is None


def test_uneven_parts_of_a_dim_go_into_no_new_dims():
    assert specs.reshape(Mesh((2, 2)), (BOTH,), (6,), (2, 3)) is None
    assert specs.reshape(Mesh((4, 1)), (FIRST, NONE), (6, 2), (12,)) is None


def test_slices_and_pads_keep_a_spec_only_where_split_dims_keep_their_sizes():
    assert specs.keep_unchanged_dims((FIRST, NONE), (4, 4), (4, 2)) == (FIRST, NONE)
    assert specs.keep_unchanged_dims((NONE, FIRST), (4, 4), (4, 2)) is None


def test_a_window_wider_than_one_cannot_slide_along_a_split_dim():
    assert specs.keep_window_dims((FIRST, NONE), (1, 3)) == (FIRST, NONE)
    assert specs.keep_window_dims((NONE, FIRST), (1, 3)) is None


def test_a_dim_split_along_both_axes_counts_as_split_along_the_first():
    assert Mesh((2, 2)).axis_of_dims((BOTH, NONE)) == (0, -1)
    assert Mesh((2, 2)).axis_of_dims((SECOND, FIRST)) == (1, 0)


def test_only_a_dim_along_both_axes_of_a_2d_mesh_is_mixed():
    assert [Mesh((2, 2)).is_mixed(spec) for spec in itertools.product((NONE, BOTH), repeat=1)] == [False, True]
    assert not Mesh((2, 2)).is_mixed((FIRST, SECOND))
