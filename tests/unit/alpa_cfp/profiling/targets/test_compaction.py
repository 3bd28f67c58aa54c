"""A timeline in few entries says of a queue what the long one says: what it does, how long, and what is waited for."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.database.timelines import (
    MOST_BYTES,
    MOST_ENTRIES,
    MOST_KINDS,
    SEVERAL,
    Queue,
    StepTimeline,
    TimelineEntry,
    timeline_from_text,
    timeline_text,
    totals_of,
)
from alpa_cfp.profiling.targets.compaction import compact
from alpa_cfp.targets.timeline import Entry, Timeline

pytestmark = pytest.mark.slow

QUEUES: tuple[Queue, ...] = ("computing", "communicating", "copying")


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Entries that follow each other in each queue, with gaps, some shorter than a nanosecond."""
    found = list[Entry]()
    for queue in QUEUES:
        now_s = 0.0
        for number in range(draw(st.integers(0, 40))):
            start_s = now_s + draw(st.sampled_from([0.0, 0.0, 1e-10, 3e-7, 2e-5]))
            now_s = start_s + draw(st.floats(1e-10, 1e-4))
            exposed_s = draw(st.floats(0, 1)) * (now_s - start_s) if queue == "communicating" else 0.0
            kind = draw(st.sampled_from(["a", "b", "c"]))
            found.append(Entry(f"{queue} {number}", queue, start_s, now_s, kind, number, exposed_s))
    found.sort(key=lambda each: (each.start_s, each.end_s))
    return Timeline(3.0, 1.0, 2.0, 0.5, 0.25, tuple(found), ("loop",))


def sums(entries: tuple[TimelineEntry, ...], queue: Queue) -> tuple[int, ...]:
    own = [each for each in entries if each.queue == queue]
    fields = ("count", "busy_ns", "exposed_ns", "size_bytes")
    return tuple(sum(getattr(each, field) for each in own) for field in fields)


@given(timelines(), st.integers(3, 40))
def test_few_entries_add_up_to_what_all_add_up_to(timeline: Timeline, most: int) -> None:
    every, few = compact(timeline), compact(timeline, most)
    assert len(few.entries) <= most
    assert len(every.entries) == len(timeline.entries)
    for queue in QUEUES:
        assert sums(few.entries, queue) == sums(every.entries, queue)
    assert few.kinds == every.kinds == totals_of(every.entries)
    assert (few.step_s, few.computing_s, few.communicating_s, few.hidden_s, few.copies_s) == (3.0, 1.0, 2.0, 0.5, 0.25)
    assert few.unknown_loops == 1


@given(timelines(), st.integers(3, 40))
def test_few_entries_keep_the_order_and_nothing_overlaps_within_a_queue(timeline: Timeline, most: int) -> None:
    few = compact(timeline, most)
    assert list(few.entries) == sorted(few.entries, key=lambda each: each.start_ns)
    for queue in QUEUES:
        own, all_of = few.of_queue(queue), [each for each in timeline.entries if each.queue == queue]
        assert all(first.end_ns <= second.start_ns for first, second in itertools.pairwise(own))
        assert all(each.busy_ns >= each.exposed_ns >= 0 and each.idle_ns >= 0 for each in own)
        if all_of:
            assert (own[0].start_ns, own[-1].end_ns) == (round(1e9 * all_of[0].start_s), round(1e9 * all_of[-1].end_s))


@given(timelines(), st.integers(3, 40))
def test_equal_timelines_have_equal_texts_and_a_text_gives_the_timeline_again(timeline: Timeline, most: int) -> None:
    few = compact(timeline, most)
    assert timeline_text(compact(timeline, most)) == timeline_text(few)
    assert timeline_from_text(timeline_text(few)) == few


def steps(*seconds: float, kinds: str) -> Timeline:
    """A queue that computes without a pause."""
    ends = list(itertools.accumulate(seconds))
    pairs = zip([0.0, *ends], ends, kinds, strict=False)
    entries = tuple(Entry("k", "computing", start, end, kind, 1) for start, end, kind in pairs)
    return Timeline(ends[-1], ends[-1], 0.0, 0.0, 0.0, entries)


def test_those_of_one_kind_are_merged_before_others() -> None:
    found = compact(steps(1e-6, 1e-6, 1e-6, 1e-6, 50e-6, kinds="aabbc"), 3).entries
    assert [(each.kind, each.count) for each in found] == [("a", 2), ("b", 2), ("c", 1)]


def test_what_is_short_is_merged_before_what_is_long() -> None:
    found = compact(steps(40e-6, 1e-6, 1e-6, 40e-6, 30e-6, kinds="abacb"), 4).entries
    assert [(each.kind, each.count) for each in found] == [("a", 1), (SEVERAL, 2), ("c", 1), ("b", 1)]


def test_the_longest_timeline_is_not_long() -> None:
    """Every figure has more digits than a step of an hour that moves an exabyte has."""
    hour_ns, exabyte = 3600 * 10**9, 10**18
    entries = tuple(
        Entry("k", QUEUES[number % 2], 2 * number, 2 * number + 1.9, f"{number % 60:_>40}", exabyte, 1.1)
        for number in range(20_000)
    )
    found = compact(Timeline(1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3, entries))
    assert len(found.entries) <= MOST_ENTRIES
    assert len(found.kinds) <= MOST_KINDS
    assert found.entries[-1].end_ns > hour_ns
    assert len(timeline_text(found)) <= MOST_BYTES


def test_more_entries_than_the_most_are_no_timeline() -> None:
    entries = (TimelineEntry("computing", "a", 0, 0, 0),) * (MOST_ENTRIES + 1)
    with pytest.raises(ValueError, match="there are at most 320 entries of 24 kinds"):
        StepTimeline(1.0, 1.0, 0.0, 0.0, 0.0, entries, ())


def test_entries_that_overlap_are_no_timeline() -> None:
    pair = (TimelineEntry("computing", "a", 0, 5, 0), TimelineEntry("computing", "b", 4, 6, 0))
    with pytest.raises(ValueError, match="it must start after those before it"):
        StepTimeline(1.0, 1.0, 0.0, 0.0, 0.0, pair, ())
