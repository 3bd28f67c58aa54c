"""The collectives of a whole program are told by its skeletons: what one more unit adds, each further one adds, too."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.select.planned_program import extrapolated
from alpa_cfp.spmd.partition import Collective

KINDS = st.sampled_from([("all-reduce", 8), ("all-gather", 8), ("all-gather", 2)])
COLLECTIVES = st.lists(st.tuples(KINDS, st.sampled_from([8, 16, 64, 256])), max_size=6).map(
    lambda some: [Collective(kind, size, group) for (kind, group), size in some]
)


def totals(collectives: list[Collective] | tuple[Collective, ...]) -> Counter[tuple[str, int]]:
    return Counter({(each.kind, each.group_size): 0 for each in collectives}) + Counter(
        {
            key: sum(each.size_bytes for each in collectives if (each.kind, each.group_size) == key)
            for key in {(each.kind, each.group_size) for each in collectives}
        }
    )


@given(COLLECTIVES, COLLECTIVES, st.integers(0, 5))
def test_what_each_unit_adds_is_there_as_often_as_units_are_missing(
    shared: list[Collective], unit: list[Collective], missing: int
) -> None:
    found = extrapolated(shared, [[*shared, *unit]], [missing])
    assert Counter(found) == Counter([*shared, *unit * missing])


@given(COLLECTIVES, COLLECTIVES, COLLECTIVES, st.integers(0, 5), st.integers(0, 5))
def test_units_of_several_repeats_add_what_each_of_them_adds(
    shared: list[Collective], one: list[Collective], other: list[Collective], ones: int, others: int
) -> None:
    found = extrapolated(shared, [[*shared, *one], [*shared, *other]], [ones, others])
    assert Counter(found) == Counter([*shared, *one * ones, *other * others])


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.integers(0, 9))
def test_a_collective_that_combines_those_of_all_units_grows_with_each_of_them(
    size: int, first: int, second: int, ones: int, others: int
) -> None:
    base, longer = Collective("all-reduce", size, 8), (size + first, size + second)
    found = extrapolated([base], [[Collective("all-reduce", each, 8)] for each in longer], [ones, others])
    assert found == (Collective("all-reduce", size + ones * first + others * second, 8),)


def test_the_arrays_of_one_that_grows_grow_too() -> None:
    before, after = Collective("all-reduce", 300, 8, 1, 2, 20), Collective("all-reduce", 700, 8, 3, 5, 50)
    (found,) = extrapolated([before], [[after]], [10])
    assert (found.size_bytes, found.large_arrays, found.small_arrays, found.small_bytes) == (4300, 21, 32, 320)


def test_equal_ones_that_run_beside_contractions_and_that_do_not_are_told_apart() -> None:
    waits, aside = Collective("all-reduce", 300, 8), Collective("all-reduce", 300, 8, is_aside=True)
    found = extrapolated([waits, aside], [[waits, aside, aside, waits, aside]], [10])
    assert Counter(each.is_aside for each in found) == {True: 21, False: 11}


def test_one_that_runs_beside_contractions_in_one_of_the_programs_only_grows_nevertheless() -> None:
    before, after = Collective("all-reduce", 300, 8, is_aside=True), Collective("all-reduce", 400, 8)
    (found,) = extrapolated([before], [[after]], [10])
    assert found.size_bytes == 1300


def test_one_that_grows_is_told_from_one_that_is_added() -> None:
    before, after, added = (Collective("all-reduce", size, 8) for size in (300, 400, 7))
    found = extrapolated([before], [[added, after]], [10])
    assert Counter(found) == Counter([Collective("all-reduce", 1300, 8), *[added] * 10])


@given(COLLECTIVES, COLLECTIVES)
def test_with_one_unit_missing_the_longer_skeleton_has_the_collectives(
    shorter: list[Collective], longer: list[Collective]
) -> None:
    assert totals(extrapolated(shorter, [longer], [1])) == totals(longer)
