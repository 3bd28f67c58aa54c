"""Plan reports drawn at random, for properties that hold for every report."""

from typing import get_args

from hypothesis import strategies as st

from alpa_cfp.database import StepTimeline
from alpa_cfp.database.timelines import Queue, TimelineEntry, totals_of
from alpa_cfp.plan.plan_report import Alternative, BlockKind, BlockReport, Communication, Move, PlanReport, TriedPlan

seconds = st.floats(0, 1e6)
sizes = st.integers(0, 2**50)
communications = st.builds(
    Communication,
    st.sampled_from(["all-reduce", "all-gather"]),
    st.lists(st.integers(0, 1), max_size=2).map(tuple),
    sizes,
    st.integers(1, 9),
    st.sampled_from([None, "gradient", "mostly gradient", "weight"]),
)
alternatives = st.builds(
    Alternative,
    st.tuples(*[st.sampled_from(["samples", "heads", "experts", "batch", "columns", "rows", None])] * 2),
    st.sampled_from(["as used", "all split"]),
    st.none() | seconds,
    st.sampled_from(["measured", "estimated"]),
    st.text(max_size=9),
    sizes,
    sizes,
    sizes,
    seconds,
    st.lists(communications, max_size=2).map(tuple),
    communication_source=st.sampled_from(["program", "compiled", "predicted", "unknown"]),
)
kinds = st.builds(
    BlockKind,
    st.text(max_size=9),
    sizes,
    st.lists(st.text(max_size=9), max_size=2).map(tuple),
    st.lists(alternatives, min_size=1, max_size=3).map(tuple),
)
tried = st.builds(
    TriedPlan,
    st.text(max_size=9),
    seconds,
    st.none() | seconds,
    st.none() | sizes,
    st.none() | sizes,
    st.text(),
    st.booleans(),
)


@st.composite
def timelines(draw: st.DrawFn) -> StepTimeline:
    """Entries that follow each other in each queue."""
    entries = list[TimelineEntry]()
    for queue in get_args(Queue):
        now_ns = 0
        for kind in draw(st.lists(st.text(max_size=9), max_size=3)):
            start_ns = now_ns + draw(sizes)
            now_ns = start_ns + draw(sizes)
            exposed_ns = draw(st.integers(0, now_ns - start_ns)) if queue == "communicating" else 0
            own = (draw(sizes), draw(st.integers(1, 9)))
            entries.append(TimelineEntry(queue, kind, start_ns, now_ns, *own, exposed_ns=exposed_ns))
    entries.sort(key=lambda each: each.start_ns)
    return StepTimeline(
        draw(seconds), draw(seconds), draw(seconds), draw(seconds), draw(seconds),
        tuple(entries), totals_of(entries), draw(st.integers(0, 3)),
    )  # fmt: skip


@st.composite
def plan_reports(draw: st.DrawFn) -> PlanReport:
    """A report with valid indices."""
    its_kinds = tuple(draw(st.lists(kinds, min_size=1, max_size=2)))
    blocks: list[BlockReport] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.integers(0, len(its_kinds) - 1))
        chosen = draw(st.integers(0, len(its_kinds[kind].alternatives) - 1))
        paths = tuple(draw(st.lists(st.text(max_size=9), max_size=2)))
        numbers = tuple(draw(st.lists(st.integers(0, 99), max_size=2)))
        blocks.append(BlockReport(draw(st.text()), kind, chosen, paths, draw(sizes), draw(sizes), numbers, draw(sizes)))
    ends = st.integers(0, len(blocks) - 1)
    moves = draw(st.lists(st.builds(Move, ends, ends, seconds, sizes, sizes), max_size=2))
    return PlanReport(
        tuple(draw(st.lists(st.text(max_size=9), max_size=2))),
        its_kinds,
        tuple(blocks),
        tuple(moves),
        tuple(draw(st.lists(tried, max_size=2))),
        draw(seconds),
        draw(sizes),
        timeline=draw(st.none() | timelines()),
    )
