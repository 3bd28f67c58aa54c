"""The logical shapes of a mesh."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.planner.mesh_shapes import all_shapes, refines
from alpa_cfp.spmd.shardings.sharding import LogicalMesh


def shapes(given_shape: tuple[int, ...], most_axes: int) -> list[tuple[int, ...]]:
    return [mesh.shape for mesh in all_shapes(LogicalMesh(given_shape), most_axes)]


@pytest.mark.parametrize(
    ("most_axes", "expected"),
    [(2, [(16,), (2, 8), (4, 4)]), (3, [(16,), (2, 8), (4, 4), (2, 2, 4)])],
)
def test_they_have_at_most_so_many_axes(most_axes: int, expected: list[tuple[int, ...]]) -> None:
    assert shapes((16,), most_axes) == expected


def test_the_given_one_comes_first_and_is_there_once() -> None:
    assert shapes((4, 2), 3) == [(4, 2), (1, 8), (2, 4), (2, 2, 2)]
    assert shapes((2, 4), 2) == [(2, 4), (1, 8)]


@given(st.integers(1, 64), st.integers(2, 3))
def test_each_has_all_devices_and_none_is_there_twice(devices: int, most_axes: int) -> None:
    found = shapes((1, devices), most_axes)
    assert all(math.prod(shape) == devices for shape in found)
    assert len(set(found)) == len(found)


def test_one_of_three_axes_refines_all_others_of_eight_devices() -> None:
    assert all(refines((2, 2, 2), shape) for shape in shapes((8,), 3) if shape != (2, 2, 2))
