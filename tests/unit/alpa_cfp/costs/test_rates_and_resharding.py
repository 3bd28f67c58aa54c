"""What communication costs: nothing where an array already lies as it should, more for more bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.costs import Rates, crossing_bytes, resharding_collectives, resharding_matrices
from alpa_cfp.spmd.shardings.sharding import ArraySharding
from unit.alpa_cfp.spmd.helpers import MESH_2X4, all_shardings, split

SHAPE = (16, 32)
RATES = Rates(latency_s=1.0, link_bytes_per_s=1.0)
SHARDINGS = all_shardings(MESH_2X4, SHAPE)


def amounts(source: ArraySharding, target: ArraySharding) -> tuple[int, float]:
    """The collectives, and their bytes across a device's link."""
    found = resharding_collectives(SHAPE, 4, source, target)
    return len(found), sum(crossing_bytes(each.kind, each.size_bytes, each.group_size) for each in found)


def cost_of(source: ArraySharding, target: ArraySharding) -> float:
    return float(RATES.communication_s(np.array(amounts(source, target))))


def moved(before: tuple[str, str], after: tuple[str, str]) -> float:
    return cost_of(split(MESH_2X4, *before), split(MESH_2X4, *after))


def test_slicing_is_free() -> None:
    assert moved(("", ""), ("x", "y")) == 0
    assert moved(("x", ""), ("xy", "")) == 0


def test_gathering_costs_what_the_other_devices_hold() -> None:
    part_bytes = 16 * 32 * 4 / 4
    assert moved(("y", ""), ("", "")) == 1 + 3 * part_bytes


def test_exchanging_parts_costs_less_than_gathering_them() -> None:
    part_bytes = 16 * 32 * 4 / 4
    assert moved(("y", ""), ("", "y")) == 1 + 3 / 4 * part_bytes
    assert moved(("y", ""), ("", "y")) < moved(("y", ""), ("", ""))


def test_an_axis_under_another_one_is_gathered_alone() -> None:
    assert moved(("xy", ""), ("x", "")) == 1 + 3 * 16 * 32 * 4 / 8


def test_an_all_reduce_costs_a_reduce_scatter_and_an_all_gather_of_the_parts() -> None:
    both = crossing_bytes("reduce-scatter", 400.0, 4) + crossing_bytes("all-gather", 400.0 / 4, 4)
    assert crossing_bytes("all-reduce", 400.0, 4) == pytest.approx(both)


@given(st.sampled_from(SHARDINGS), st.sampled_from(SHARDINGS))
def test_only_what_moves_costs(source, target) -> None:
    cost = cost_of(source, target)
    # Each device holds already what it is to hold: nothing has to come from another one.
    sliced = all(new[: len(old)] == old for old, new in zip(source.dims, target.dims, strict=True))
    assert (cost == 0) == sliced


@given(
    st.lists(st.sampled_from(SHARDINGS), min_size=1, max_size=5),
    st.lists(st.sampled_from(SHARDINGS), min_size=1, max_size=5),
)
def test_the_matrix_has_each_pair(sources, targets) -> None:
    matrices = resharding_matrices(SHAPE, 4, sources, targets)
    matrix = sum(matrices.values(), np.zeros((len(sources), len(targets), 2)))
    expected = [[amounts(source, target) for target in targets] for source in sources]
    np.testing.assert_array_equal(matrix, expected)
