"""Which segments a shorter program leaves out: units of repeats, so that neighbours stay what they were."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.analysis.repeats import Repeat, find_repeats, left_out

# A few units, each a few times in a row.
LABELS = st.lists(st.tuples(st.text("abc", min_size=1, max_size=3), st.integers(1, 6)), max_size=4).map(
    lambda runs: "".join(unit * count for unit, count in runs)
)


def test_layers_between_a_first_and_a_last_segment_are_one_repeat() -> None:
    assert find_repeats("abbbbbc", 3) == (Repeat(1, 1, 5),)
    assert find_repeats("ababababc", 3) == (Repeat(0, 2, 4),)
    assert find_repeats("aaabbbb", 3) == (Repeat(0, 1, 3), Repeat(3, 1, 4))
    assert find_repeats("abcd", 2) == ()


def test_the_middle_is_left_out_and_what_is_before_and_behind_it_takes_its_place() -> None:
    (repeat,) = find_repeats("abbbbbc", 3)
    gaps = left_out({repeat: 2})
    assert sorted(gaps) == [2, 3, 4]
    assert {(gap.before, gap.after) for gap in gaps.values()} == {(1, 5)}
    assert [segment for segment, gap in gaps.items() if gap.is_first] == [2]


@given(LABELS, st.integers(3, 5))
def test_repeats_do_not_overlap_and_repeat(labels: str, least: int) -> None:
    found = find_repeats(labels, least)
    for repeat in found:
        unit = labels[repeat.start : repeat.start + repeat.period]
        assert labels[repeat.start : repeat.start + repeat.period * repeat.count] == unit * repeat.count
        assert repeat.count >= least
    assert all(one.start + one.period * one.count <= other.start for one, other in pairwise(found))


@given(LABELS, st.integers(2, 3))
def test_a_segment_that_is_left_out_is_like_those_in_its_place_and_neighbours_stay_neighbours(
    labels: str, copies: int
) -> None:
    gaps = left_out(dict.fromkeys(find_repeats(labels, copies + 1), copies))
    for segment, gap in gaps.items():
        assert labels[gap.before] == labels[segment] == labels[gap.after]
        assert gap.before < segment < gap.after
        assert gap.before not in gaps
        assert gap.after not in gaps
    kept = [number for number in range(len(labels)) if number not in gaps]
    before = set(pairwise(labels))
    assert {(labels[one], labels[other]) for one, other in pairwise(kept)} == before
