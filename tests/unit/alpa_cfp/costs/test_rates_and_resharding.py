"""What communication costs: nothing where an array already lies as it should, more for more bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.costs import Rates, Work, crossing_bytes, estimated_s, fitted, resharding_collectives, resharding_matrices
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


@pytest.mark.parametrize("faster", [1.0, 1e4])
def test_rates_are_fitted_to_devices_that_are_much_faster_than_the_usual_ones(faster: float) -> None:
    true = Rates(flops_per_s=faster * 4e10, bytes_per_s=faster * 3e9)
    works = [Work(1e9 * a, 1e7 * b, ()) for a, b in ((1, 1), (2, 40), (50, 3), (7, 7))]
    found = fitted(works, [estimated_s(work, true) for work in works], Rates())
    assert found.flops_per_s == pytest.approx(true.flops_per_s, rel=0.05)
    assert found.bytes_per_s == pytest.approx(true.bytes_per_s, rel=0.05)


def test_times_that_are_small_beside_the_start_of_a_program_hardly_change_rates() -> None:
    works = [Work(1e9, 1e8, ()), Work(4e9, 1e8, ()), Work(1e4, 1e3, ())]
    seconds = [estimated_s(work, RATES) for work in works]
    noisy = [*seconds[:2], 1e3 * seconds[2]]
    usual = Rates(dispatch_s=1e-3)
    found = fitted(works, noisy, usual)
    assert found.flops_per_s == pytest.approx(fitted(works, seconds, usual).flops_per_s, rel=0.02)
