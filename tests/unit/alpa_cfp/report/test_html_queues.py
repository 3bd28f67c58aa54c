"""The page of a plan for a target draws the queues of one device, and says in words what the drawing shows."""

from dataclasses import replace

from hypothesis import given

from alpa_cfp.database import StepTimeline
from alpa_cfp.database.timelines import SEVERAL, TimelineEntry, totals_of
from alpa_cfp.report.html_page import html_page
from alpa_cfp.report.html_queues import queues as drawn
from unit.alpa_cfp.report.drawn import timelines
from unit.alpa_cfp.report.reports import gpt, modelled, plan_of, queues
from unit.alpa_cfp.report.test_html_page import Page

COMPUTING = TimelineEntry("computing", "product", 0, 1_000_000, 8)


def of(*entries: TimelineEntry, unknown_loops: int = 0) -> StepTimeline:
    return StepTimeline(1e-3, 1e-3, 0.0, 0.0, 0.0, entries, totals_of(entries), unknown_loops)


def shown(timeline: StepTimeline) -> Page:
    return Page(drawn(timeline))


def words_of(timeline: StepTimeline) -> str:
    return " ".join(shown(timeline).text().split())


def test_a_plan_that_was_not_modelled_has_no_queues() -> None:
    assert "queues" not in Page(html_page(plan_of(gpt()))).values("id")
    assert "queues" in Page(html_page(modelled())).values("id")


def test_each_queue_that_does_something_is_a_lane_and_each_entry_a_bar() -> None:
    page = shown(queues())
    lanes = [own["aria-label"] for _, own in page.tags if own.get("class") == "lane"]
    assert lanes == ["Computation, modelled", "Communication, modelled"]
    assert page.values("class").count("entry") == len(queues().entries)


def test_what_is_waited_for_of_a_collective_is_drawn_apart_and_higher() -> None:
    """Of each sum 0.01 ms of 0.05 ms is hidden, so it is two shapes; a gather, hidden as a whole, is one."""
    shapes = [own for tag, own in shown(queues()).tags if tag == "rect"]
    waited, hidden = ([own for own in shapes if own["class"] == f"shape {colour}"] for colour in ("c3", "c2"))
    assert (len(waited), len(hidden)) == (4, 7)
    assert {own["height"] for own in waited} == {"36"}
    assert {own["height"] for own in hidden} == {"18"}


def test_every_bar_says_what_it_is_how_long_it_takes_and_what_is_waited_for() -> None:
    titles = [text for tag, text in shown(queues()).texts if tag == "title"]
    assert len(titles) == len(queues().entries)
    assert "product, 0.0800 ms modelled\n48 MB\nfrom 0 ms to 0.0800 ms" in titles
    assert (
        "all-reduce, 0.0500 ms modelled\n0.0100 ms beside computation, 0.0400 ms waited for\n32 MB\n"
        "from 0.0900 ms to 0.140 ms"
    ) in titles


def test_the_totals_are_said_and_in_the_table() -> None:
    said = words_of(queues())
    assert (
        "Computation 0.400 ms, communication 0.290 ms, of which 0.130 ms (45%) runs beside computation. Modelled from"
    ) in said
    assert "Communication 0.290 ms 52% 0.130 ms 0.160 ms all-reduce 4 0.200 ms 36% 0.0400 ms 0.160 ms 128 MB" in said


def test_merged_bars_and_what_is_not_known_of_loops_are_said() -> None:
    merged = replace(COMPUTING, kind=SEVERAL, count=7)
    assert "1 bar stand for 7 instructions" not in words_of(of(COMPUTING))
    assert "7 instructions: of several kinds, 1.00 ms modelled" in words_of(of(merged))
    assert "The further trips of a loop are one bar" in words_of(of(replace(COMPUTING, kind="loop")))
    assert "Of 2 loops the number of trips is not known" in words_of(of(COMPUTING, unknown_loops=2))


def test_copies_have_a_lane_of_their_own() -> None:
    page = shown(of(COMPUTING, TimelineEntry("copying", "copy", 0, 500, 64)))
    assert "Copies, modelled" in page.values("aria-label")


@given(timelines())
def test_any_timeline_is_drawn_within_its_width(timeline: StepTimeline) -> None:
    for tag, own in shown(timeline).tags:
        if tag == "rect":
            assert 0 <= float((own["x"] or "").removesuffix("%")) <= 100
            assert 0 < float((own["width"] or "").removesuffix("%")) <= 100


def test_the_names_of_kinds_are_not_taken_for_markup() -> None:
    page = drawn(of(replace(COMPUTING, kind="<script>")))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_the_longest_timeline_makes_a_page_that_a_browser_takes() -> None:
    entries = [TimelineEntry("computing", "fusion", 10 * number, 10 * number + 9, 8) for number in range(320)]
    assert len(drawn(of(*entries))) < 150_000
