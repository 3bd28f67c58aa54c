"""Times of collectives between the points that were measured."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.costs import CommunicationCosts, Rates, crossing_bytes
from alpa_cfp.costs.communication import CollectiveKey, Curve
from alpa_cfp.spmd.partition import Collective

POINTS = ((1e4, 1e-4), (5e5, 3e-4), (2e6, 2e-3))
SUM = Collective("all-reduce", 65_536, 2)
OF_TWO = CollectiveKey("all-reduce", 2)


def test_a_curve_meets_its_points() -> None:
    curve = Curve.through(POINTS)
    for size, seconds in POINTS:
        assert curve.latency_s + float(curve.bytes_s(np.array(size))) == pytest.approx(seconds)


@given(
    st.lists(st.tuples(st.floats(1e3, 1e7), st.floats(0, 1)), min_size=2, max_size=5, unique_by=lambda each: each[0])
)
def test_more_bytes_never_take_less_time(points: list[tuple[float, float]]) -> None:
    curve = Curve.through(points)
    times = curve.bytes_s(np.linspace(0, 2e7, 50))
    assert curve.latency_s >= 0
    assert (np.diff(times) >= -1e-12).all()


def test_what_was_not_measured_costs_as_the_rates_say() -> None:
    rates = Rates(latency_s=1e-3, link_bytes_per_s=1e9)
    expected = 1e-3 + crossing_bytes("all-reduce", SUM.size_bytes, 2) / 1e9
    assert CommunicationCosts(rates).by_key([SUM]) == {OF_TWO: pytest.approx(expected)}


def test_of_group_sizes_that_were_not_measured_the_nearest_counts() -> None:
    near, far = Curve.through(POINTS), Curve.through([(size, 9 * seconds) for size, seconds in POINTS])
    costs = CommunicationCosts(Rates(), {CollectiveKey("all-reduce", 4): near, CollectiveKey("all-reduce", 64): far})
    assert costs.line(CollectiveKey("all-reduce", 8)) is near


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_each_further_large_array_costs_its_share_of_a_latency(share: float) -> None:
    costs = CommunicationCosts(Rates(latency_s=1.0), array_share=share)
    one, three = (costs.by_key([replace(SUM, large_arrays=count)])[OF_TWO] for count in (1, 3))
    assert three - one == pytest.approx(2 * share)


def test_of_collectives_that_a_plan_combines_large_arrays_count() -> None:
    large = replace(SUM, large_arrays=2)
    costs = CommunicationCosts(Rates(latency_s=1.0), array_share=0.5)
    assert costs.by_key([large], [large])[OF_TWO] - costs.by_key([SUM], [SUM])[OF_TWO] == 1.0


@pytest.mark.parametrize(("large", "small", "joined"), [(0, 3, True), (1, 1, True), (0, 1, False)])
def test_small_arrays_of_a_collective_of_several_cost_what_copying_them_takes(
    large: int, small: int, joined: bool
) -> None:
    costs = CommunicationCosts(Rates(latency_s=1.0), small_array_s=0.1, small_byte_s=0.01)
    collective = replace(SUM, large_arrays=large, small_arrays=small, small_bytes=50)
    more = costs.by_key([collective])[OF_TWO] - costs.by_key([SUM])[OF_TWO]
    assert more == pytest.approx(0.1 * small + 0.5 if joined else 0.0)


def test_a_small_array_that_a_plan_combines_with_others_is_copied() -> None:
    costs, small = CommunicationCosts(Rates(latency_s=1.0), small_array_s=0.1), replace(SUM, small_arrays=1)
    assert costs.by_key([small], [small])[OF_TWO] - costs.by_key([SUM], [SUM])[OF_TWO] == pytest.approx(0.1)


def test_of_collectives_that_a_plan_combines_only_the_bytes_count_where_no_array_is_large() -> None:
    costs = CommunicationCosts(Rates(latency_s=1.0))
    alone, combined = costs.by_key([SUM]), costs.by_key([SUM], [SUM])
    assert alone[OF_TWO] - combined[OF_TWO] == pytest.approx(1.0)


def test_where_things_overlap_what_runs_beside_contractions_takes_its_share_of_its_time() -> None:
    alone, beside = CommunicationCosts(Rates()), CommunicationCosts(Rates(), aside_share=0.25)
    aside = replace(SUM, is_aside=True)
    assert beside.by_key([aside]) == {replaced(OF_TWO): pytest.approx(0.25 * alone.by_key([SUM])[OF_TWO])}
    assert beside.by_key([SUM]) == alone.by_key([SUM]) == alone.by_key([aside])


def test_sums_that_plans_combine_run_beside_contractions() -> None:
    assert list(CommunicationCosts(Rates(), aside_share=0.5).by_key([SUM], [SUM])) == [replaced(OF_TWO)]


def test_what_crosses_beside_contractions_takes_its_share_too() -> None:
    costs, amounts = CommunicationCosts(Rates(), aside_share=0.5), (np.array(2.0), np.array(1e6))
    assert costs.crossing_s(replaced(OF_TWO), *amounts) == pytest.approx(0.5 * costs.crossing_s(OF_TWO, *amounts))


def replaced(key: CollectiveKey) -> CollectiveKey:
    """The key of those that run beside contractions."""
    return key._replace(is_aside=True)
