"""Collectives are measured in the middle of programs, beside the same programs without them."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.costs import CommunicationCosts, Rates
from alpa_cfp.costs.communication import CollectiveKey, Curve
from alpa_cfp.database import Profile, utc_now
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.select.communication import communication_costs, communication_programs, with_common_latency
from alpa_cfp.spmd.shardings.sharding import LogicalMesh

pytestmark = pytest.mark.slow

MESH = LogicalMesh((2, 4))
NOTHING = {f"{name}_bytes": 0 for name in ("argument", "output", "aliased", "temporary")}


def profile(seconds: float) -> Profile:
    return Profile(status="measured", created_at=utc_now(), samples_s=(seconds,), compile_s=0.1, **NOTHING)


def test_each_group_of_axes_has_programs_with_and_without_each_kind_of_collective() -> None:
    programs = [each.partitioned for each in communication_programs(MESH)]
    found = {(each.kind, each.group_size) for program in programs if program for each in program.collectives}
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    assert found == {(kind, size) for kind in kinds for size in (2, 4, 8)}
    assert all(program is not None and not program.collectives for program in programs[1::2])


def test_what_a_collective_takes_is_the_difference_to_the_program_without_it() -> None:
    count = len(communication_programs(MESH))
    profiles = [profile(2e-3 if number % 2 == 0 else 1e-3) for number in range(count)]
    costs = communication_costs(MESH, profiles, Rates())
    assert costs.line(CollectiveKey("all-reduce", 4)).latency_s == pytest.approx(1e-3 / 4)


LATENCIES = st.lists(st.floats(1e-5, 1e-3), min_size=4, max_size=4)
LINE = Curve(1e-4, (1e3, 1e6), (1e-6, 1e-3))


def pooled(latencies: list[float], noise_s: float) -> list[float]:
    """The latencies of four kinds of collectives, that are measured as `latencies`."""
    lines = {CollectiveKey(str(n), 8): dataclasses.replace(LINE, latency_s=each) for n, each in enumerate(latencies)}
    found = with_common_latency(lines, dict.fromkeys(lines, noise_s))
    assert all(dataclasses.replace(line, latency_s=LINE.latency_s) == LINE for line in found.values())
    return [line.latency_s for line in found.values()]


@given(LATENCIES)
def test_latencies_that_are_known_exactly_stay(latencies: list[float]) -> None:
    assert pooled(latencies, 0.0) == pytest.approx(latencies)


@given(LATENCIES)
def test_latencies_that_are_hardly_known_are_that_of_all_kinds(latencies: list[float]) -> None:
    assert pooled(latencies, 1.0) == pytest.approx([sum(latencies) / 4] * 4, rel=1e-3)


@given(LATENCIES, st.floats(1e-6, 1e-3))
def test_noise_brings_latencies_together_and_keeps_their_order(latencies: list[float], noise_s: float) -> None:
    found = pooled(latencies, noise_s)
    assert max(found) - min(found) <= (max(latencies) - min(latencies)) * (1 + 1e-9)
    assert [each for _, each in sorted(zip(latencies, found, strict=True))] == pytest.approx(sorted(found))


def test_groups_of_other_sizes_say_nothing() -> None:
    lines = {
        CollectiveKey("all-reduce", 2): LINE,
        CollectiveKey("all-reduce", 8): dataclasses.replace(LINE, latency_s=1),
    }
    assert with_common_latency(lines, dict.fromkeys(lines, 1e-3)) == lines


def of_several(large_s: float, few_s: float, many_s: float) -> CommunicationCosts:
    """The costs if a latency is a millisecond whatever the bytes, and all-reduces of several arrays take so long."""
    count = len(communication_programs(MESH)) - 6
    profiles = [profile(5e-3 if number % 2 == 0 else 1e-3) for number in range(count)]
    several = [profile(1e-3 + 4 * each) for seconds in (large_s, few_s, many_s) for each in (seconds, 0.0)]
    return communication_costs(MESH, [*profiles, *several], Rates())


@pytest.mark.parametrize(("collective_s", "share"), [(1e-3, 0.0), (3e-3, 0.5), (9e-3, 1.0)])
def test_an_all_reduce_of_five_large_arrays_says_what_each_costs(collective_s: float, share: float) -> None:
    assert of_several(collective_s, 1e-3, 1e-3).array_share == pytest.approx(share)


@given(st.floats(0, 1e-4), st.floats(0, 1e-7))
def test_two_all_reduces_of_32_small_arrays_say_what_an_array_and_its_bytes_cost(array_s: float, byte_s: float) -> None:
    costs = of_several(1e-3, *(1e-3 + 32 * (array_s + size * byte_s) for size in (4_096, 32_768)))
    assert costs.small_array_s == pytest.approx(array_s, abs=1e-12)
    assert costs.small_byte_s == pytest.approx(byte_s, abs=1e-15)


def test_without_profiles_the_rates_hold_with_a_warning() -> None:
    count, caveats = len(communication_programs(MESH)), Caveats()
    assert communication_costs(MESH, [None] * count, Rates(), caveats).lines == {}
    (warning,) = caveats.all
    assert f"{count} of {count} programs that tell what collectives take could not be measured" in warning.text


def test_on_one_device_nothing_is_measured() -> None:
    assert communication_programs(LogicalMesh((1,))) == []
