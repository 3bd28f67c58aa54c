"""Laws that hold for collectives on every kind of links."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.errors import OptionError
from alpa_cfp.targets.interconnect import (
    KINDS,
    GpuInterconnect,
    HostLink,
    Interconnect,
    Network,
    Slices,
    TorusInterconnect,
    collective_s,
)

SIZES = st.integers(0, 2**33)


def gpus(
    generation: str, kind: str, rate: float, network: float, *, reduces: bool, factor: float = 1.0
) -> Interconnect:
    link = HostLink(kind, rate * factor, reduces=reduces)
    return GpuInterconnect(generation, 4, 8, link, Network(network * factor))


def machine(name: str, factor: float = 1.0) -> Interconnect:
    """One of several machines of 32 devices, with all rates times a factor."""
    if name == "a100":
        return gpus("ampere", "nvlink", 300e9, 25e9, reduces=False, factor=factor)
    if name == "a100-pcie":
        return gpus("ampere", "pcie", 31.5e9, 12.5e9, reduces=False, factor=factor)
    if name == "h100":
        return gpus("hopper", "nvlink", 450e9, 50e9, reduces=True, factor=factor)
    if name == "b200":
        return gpus("blackwell", "nvlink", 900e9, 50e9, reduces=True, factor=factor)
    if name == "v5e":
        return TorusInterconnect((4, 8), (False, False), 4.5e10 * factor)
    slices = Slices(2, 6.25e9 * factor)
    return TorusInterconnect((4, 2, 2), (True, False, False), 9e10 * factor, slices=slices)


MACHINES = ("a100", "a100-pcie", "h100", "b200", "v5e", "v5p")
# All devices; the hosts or rows of them; every eighth; halves of a host; two of each of two hosts.
GROUPINGS = {
    "all": [range(32)],
    "rows": [range(start, start + 8) for start in range(0, 32, 8)],
    "columns": [range(start, 32, 8) for start in range(8)],
    "halves": [range(start, start + 4) for start in range(0, 32, 4)],
    "mixed": [(start, start + 1, start + 8, start + 9) for start in (0, 2, 4, 6, 16, 18, 20, 22)],
}


def groups_of(kind: str, grouping: str) -> tuple[tuple[int, ...], ...]:
    groups = tuple(map(tuple, GROUPINGS[grouping]))
    if kind != "collective-permute":
        return groups
    return tuple(pair for group in groups for pair in zip(group, group[1:] + group[:1], strict=True))


@given(st.sampled_from(MACHINES), st.sampled_from(KINDS), st.sampled_from(sorted(GROUPINGS)), SIZES, SIZES)
def test_more_bytes_never_take_less_time(name: str, kind: str, grouping: str, size: int, more: int) -> None:
    groups, links = groups_of(kind, grouping), machine(name)
    small, large = (collective_s(kind, each, groups, links) for each in sorted((size, more)))
    assert 0 < small <= large * (1 + 1e-12)


@given(st.sampled_from(MACHINES), st.sampled_from(KINDS), st.sampled_from(sorted(GROUPINGS)), SIZES)
def test_links_of_half_the_rate_take_at_most_twice_the_time(name: str, kind: str, grouping: str, size: int) -> None:
    groups = groups_of(kind, grouping)
    full, half = (collective_s(kind, size, groups, machine(name, factor)) for factor in (1.0, 0.5))
    assert full <= half * (1 + 1e-12)
    assert half <= 2 * full * (1 + 1e-12)


@given(st.sampled_from(MACHINES), st.sampled_from(KINDS), SIZES)
def test_groups_without_a_common_link_take_as_long_as_the_slowest_alone(name: str, kind: str, size: int) -> None:
    links, together = machine(name), groups_of(kind, "rows")
    of_row = len(together) // 4
    alone = [
        collective_s(kind, size, together[start : start + of_row], links) for start in range(0, 4 * of_row, of_row)
    ]
    assert collective_s(kind, size, together, links) == pytest.approx(max(alone), rel=1e-12)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_device_by_itself_takes_nothing(name: str, kind: str) -> None:
    groups = [(3, 3)] if kind == "collective-permute" else [(3,), (4,)]
    assert collective_s(kind, 1e9, groups, machine(name)) == 0.0
    assert collective_s(kind, 1e9, [], machine(name)) == 0.0


@pytest.mark.parametrize(
    ("kind", "size", "groups", "said"),
    [
        ("broadcast", 1, [(0, 1)], "it must be one of all-reduce"),
        ("all-reduce", -1, [(0, 1)], "it must be a number of bytes from zero"),
        ("all-reduce", float("nan"), [(0, 1)], "it must be a number of bytes from zero"),
        ("all-reduce", 1, [(0, 32)], "devices are numbered from 0 to 31"),
        ("all-reduce", 1, [(0, 0)], "a device is in it twice"),
        ("collective-permute", 1, [(0, 1, 2)], "has pairs"),
    ],
)
def test_what_is_no_collective_is_refused(kind: str, size: float, groups: list[tuple[int, ...]], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        collective_s(kind, size, groups, machine("h100"))
