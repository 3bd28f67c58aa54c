"""Collectives on a torus: the book's own examples, and where a group lies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.errors import OptionError
from alpa_cfp.targets.torus import Slices, TorusInterconnect, torus_s

SIZES = st.integers(0, 2**33)
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
LINK = 4.5e10
REACHED = 0.95 * LINK


def cube(size: int = 4, *, wraps: bool = True, slices: Slices | None = None) -> TorusInterconnect:
    return TorusInterconnect((size,) * 3, (wraps,) * 3, LINK, slices=slices)


def along(dim: int, size: int = 4) -> list[tuple[int, ...]]:
    """The groups of a cube along one dim."""
    stride = size ** (2 - dim)
    starts = [number for number in range(size**3) if number // stride % size == 0]
    return [tuple(start + stride * step for step in range(size)) for start in starts]


def per_byte(kind: str, groups: list[tuple[int, ...]], links: TorusInterconnect) -> float:
    """Seconds of one more byte, in the time that a link takes for one."""
    return (torus_s(kind, 2**31, groups, links) - torus_s(kind, 2**30, groups, links)) / 2**30 * REACHED


def test_a_ring_carries_half_in_each_direction_whatever_its_size() -> None:
    """V / W of the book: the whole by the two directions of a link, without the part that a device has."""
    for size in (4, 8):
        assert per_byte("all-gather", along(2, size), cube(size)) / size == pytest.approx((size - 1) / size / 2)


def test_a_line_carries_all_from_end_to_end() -> None:
    """The book's pop quiz: three hops of a part for a line of four, 560 us for 8.4 MB on a v5e."""
    links = cube(wraps=False)
    assert per_byte("all-gather", along(2), links) == pytest.approx(3)
    assert torus_s("all-gather", 8.4e6, along(2), links) == pytest.approx(560e-6 / 0.95, rel=0.02)


def test_several_dims_carry_at_once() -> None:
    whole = [tuple(range(64))]
    assert per_byte("all-gather", whole, cube()) / 64 == pytest.approx(63 / 64 / 2 / 3)


def test_an_all_to_all_in_a_ring_takes_a_quarter_of_the_all_gather() -> None:
    """Of the same array, of which a device has a quarter; the book counts the own part of an all-gather as well."""
    gathered = per_byte("all-gather", along(2), cube()) * 4 / 3
    assert per_byte("all-to-all", along(2), cube()) == pytest.approx(gathered / 4)


@given(st.integers(0, 2), st.booleans(), SIZES)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(dim: int, wraps: bool, size: int) -> None:
    groups, links = along(dim), cube(wraps=wraps)
    start = torus_s("all-gather", 0, groups, links) - 1e-6 * (2 if wraps else 3)
    parts = torus_s("reduce-scatter", size, groups, links) + torus_s("all-gather", size / 4, groups, links) - start
    assert torus_s("all-reduce", size, groups, links) == pytest.approx(parts, rel=1e-9)


@given(st.sampled_from(KINDS), st.booleans(), SIZES)
def test_an_all_reduce_takes_at_least_its_reduce_scatter(kind: str, wraps: bool, size: int) -> None:
    scattered = torus_s("reduce-scatter", size, along(0), cube(wraps=wraps))
    assert scattered <= torus_s("all-reduce", size, along(0), cube(wraps=wraps))


@given(st.sampled_from(KINDS), st.integers(0, 2), SIZES)
def test_links_that_wrap_around_are_never_slower(kind: str, dim: int, size: int) -> None:
    assert torus_s(kind, size, along(dim), cube()) <= torus_s(kind, size, along(dim), cube(wraps=False))


@given(st.sampled_from(KINDS), SIZES)
def test_the_dims_of_a_cube_are_alike(kind: str, size: int) -> None:
    first, second, third = (torus_s(kind, size, along(dim), cube()) for dim in range(3))
    assert first == second == third


@given(st.sampled_from(KINDS), SIZES)
def test_groups_that_lie_between_each_other_share_links(kind: str, size: int) -> None:
    """Every second of a line of eight against a line of four neighbours."""
    links = TorusInterconnect((8,), (False,), LINK)
    apart = torus_s(kind, size, [(0, 2, 4, 6), (1, 3, 5, 7)], links)
    assert torus_s(kind, size, [(0, 1, 2, 3), (4, 5, 6, 7)], links) <= apart
    assert torus_s(kind, 2**30, [(0, 2, 4, 6), (1, 3, 5, 7)], links) == pytest.approx(
        2 * torus_s(kind, 2**30, [(0, 1, 2, 3), (4, 5, 6, 7)], links), rel=0.01
    )


@given(st.sampled_from(KINDS), SIZES)
def test_a_group_within_a_slice_is_never_slower_than_across_slices(kind: str, size: int) -> None:
    links = cube(slices=Slices(2, 6.25e9))
    within = torus_s(kind, size, [(0, 1, 2, 3)], links)
    assert within <= torus_s(kind, size, [(0, 1, 64, 65)], links)


def test_a_group_that_is_no_box_takes_longer_than_one_that_is() -> None:
    assert torus_s("all-gather", 2**20, [(0, 1, 4, 6)], cube()) > torus_s("all-gather", 2**20, [(0, 1, 4, 5)], cube())


def test_pairs_that_cross_the_same_link_wait_for_each_other() -> None:
    links = TorusInterconnect((4,), (False,), LINK)
    one, two = (torus_s("collective-permute", 2**30, pairs, links) for pairs in ([(0, 2)], [(0, 2), (1, 3)]))
    assert two == pytest.approx(2 * one, rel=0.01)


def test_a_pair_goes_the_shorter_way_around() -> None:
    ring, line = (TorusInterconnect((8,), (wraps,), LINK) for wraps in (True, False))
    assert torus_s("collective-permute", 0, [(7, 0)], line) - torus_s("collective-permute", 0, [(7, 0)], ring) == (
        pytest.approx(6e-6)
    )


def test_a_shift_around_a_ring_loads_each_link_once() -> None:
    ring = TorusInterconnect((8,), (True,), LINK)
    shift = [(device, (device + 1) % 8) for device in range(8)]
    assert torus_s("collective-permute", 2**30, shift, ring) == pytest.approx(2**30 / REACHED, rel=0.01)


def test_a_torus_that_cannot_be_is_refused() -> None:
    with pytest.raises(OptionError, match="positive sizes"):
        TorusInterconnect((), (), LINK)
    with pytest.raises(OptionError, match="each of the 2 dims"):
        TorusInterconnect((2, 2), (True,), LINK)
    with pytest.raises(OptionError, match="positive number of bytes"):
        TorusInterconnect((2,), (False,), 0.0)
    with pytest.raises(OptionError, match="seconds from zero"):
        TorusInterconnect((2,), (False,), LINK, hop_latency_s=-1.0)
    with pytest.raises(OptionError, match="positive numbers"):
        TorusInterconnect((2,), (False,), LINK, slices=Slices(0, 1e9))
