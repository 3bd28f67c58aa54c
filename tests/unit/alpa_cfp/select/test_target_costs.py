"""What collectives take on a target depends on where a group of devices lies, and on the chip."""

import pytest

from alpa_cfp.costs import crossing_bytes
from alpa_cfp.costs.communication import CollectiveKey
from alpa_cfp.select.target_costs import target_costs
from alpa_cfp.spmd.partition import Collective
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.targets.interconnect import collective_s
from alpa_cfp.targets.links import interconnect_of
from alpa_cfp.targets.target import target

LARGE = 1 << 28


def all_reduce_s(name: str, shape: tuple[int, ...], group: int, size: int = LARGE) -> float:
    costs = target_costs(target(name), LogicalMesh(shape))[1]
    return sum(costs.by_key([Collective("all-reduce", size, group)]).values())


@pytest.mark.parametrize("size", [1 << 16, 1 << 20, LARGE])
def test_a_collective_takes_what_the_model_of_the_links_says(size: int) -> None:
    expected = collective_s("all-reduce", size, [tuple(range(8))], interconnect_of(target("h100:1x8")))
    assert all_reduce_s("h100:1x8", (8,), 8, size) == pytest.approx(expected, rel=0.02)


def test_a_group_across_hosts_is_slower_than_one_within_a_host() -> None:
    assert all_reduce_s("h100:4x8", (4, 8), 4) > 2 * all_reduce_s("h100:4x8", (4, 8), 8)


def test_a_chip_with_faster_links_communicates_faster() -> None:
    assert (
        all_reduce_s("h100:1x8", (8,), 8) < all_reduce_s("a100:1x8", (8,), 8) < all_reduce_s("a100-pcie:1x8", (8,), 8)
    )


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"])
@pytest.mark.parametrize(("name", "shape"), [("h100:2x8", (2, 8)), ("v5e:4x4", (4, 4))])
def test_each_kind_has_a_curve_for_each_group_of_axes(kind: str, name: str, shape: tuple[int, ...]) -> None:
    costs = target_costs(target(name), LogicalMesh(shape))[1]
    for group in {*shape, 16}:
        line = costs.lines[CollectiveKey(kind, group)]
        assert line.bytes_s(crossing_bytes(kind, LARGE, group)) > 0


def test_one_device_communicates_nothing() -> None:
    rates, costs = target_costs(target("h100:1x1"), LogicalMesh((1,)))
    assert costs.lines == {}
    assert rates.flops_per_s > 1e14
