"""The queues of one device on the HTML page: what computes and communicates when in the modelled step.

Takes a timeline; gives lanes to a common scale, a bar for each entry, and the same sums in words and as a table.
Invariants: what is hidden of communication is told from what is waited for by height and in words, too, and not by
colour alone; all lengths are parts of the drawing's width, so it can be made wider without being drawn again.
"""

import itertools
from collections.abc import Iterator, Sequence

from alpa_cfp import quantities
from alpa_cfp.database import StepTimeline
from alpa_cfp.database.timelines import SEVERAL, KindTotal, Queue, TimelineEntry
from alpa_cfp.report import words
from alpa_cfp.report.html_drawing import table
from alpa_cfp.report.html_tables import strip_of
from alpa_cfp.report.markup import Markup, element, join

# The names of the queues, in the order of the lanes.
_LANES: dict[Queue, str] = {"computing": "Computation", "communicating": "Communication", "copying": "Copies"}
# Heights in pixels: of a lane, of its bars, of a bar for communication that is hidden, of the scale.
_LANE, _BAR, _HIDDEN, _SCALE = 44, 36, 18, 24
# The narrowest bar, in percent of the step.
_NARROWEST = 0.02
# Lines of the scale in the whole drawing, at most, and how many finer ones there are between two as it gets wider.
_LINES, _FINER = 10, 5


def queues(timeline: StepTimeline) -> Markup:
    """The lanes with their legend, in words before and as a table after them."""
    said = words.overlap(timeline)
    return join(
        (
            element("p", f"{said[0].upper()}{said[1:]}. {_meaning(timeline)}", class_="quiet"),
            strip_of(_parts(timeline), timeline.step_s, quantities.time),
            _legend(timeline),
            _lanes(timeline),
            _table(timeline),
        )
    )


def _meaning(timeline: StepTimeline) -> str:
    said = ["Modelled from the schedule of the compiled program: nothing has run."]
    instructions = sum(each.count for each in timeline.entries)
    if instructions > len(timeline.entries):
        bars = quantities.plural(len(timeline.entries), "bar")
        said.append(f"{bars} stand for {instructions:,} instructions, of which short neighbours are merged.")
    if any(each.kind == "loop" for each in timeline.kinds):
        said.append("The further trips of a loop are one bar, with all that they compute and communicate.")
    if timeline.unknown_loops:
        loops = quantities.plural(timeline.unknown_loops, "loop")
        said.append(f"Of {loops} the number of trips is not known: one is counted.")
    return " ".join(said)


def _parts(timeline: StepTimeline) -> Sequence[tuple[str, str, str, float]]:
    return (
        ("c0", "computes", "computation", timeline.computing_s),
        ("c3", "waits", "communication that is waited for", timeline.exposed_s),
        ("c4", "copies", "copies that are waited for", timeline.copies_s),
    )


def _legend(timeline: StepTimeline) -> Markup:
    kinds = {(each.queue, each.kind) for each in timeline.kinds}
    there = {queue for queue, _ in kinds}
    items = (
        ("c0", "products", ("computing", "product") in kinds),
        ("c5", "other computation", any(each.queue == "computing" for each in timeline.kinds)),
        ("c6", "further trips of a loop", ("computing", "loop") in kinds),
        ("c2 low", "communication beside computation (low)", "communicating" in there),
        ("c3", "communication that is waited for (high)", "communicating" in there),
        ("c4", "copies between memories", "copying" in there),
    )
    drawn = [
        element("li", element("span", class_=f"swatch {colour}"), element("span", text), class_="plain")
        for colour, text, is_there in items
        if is_there
    ]
    return element("ul", drawn, class_="legend", aria_label="Colours")


def _lanes(timeline: StepTimeline) -> Markup:
    lanes = list[tuple[Queue, tuple[TimelineEntry, ...]]]()
    for queue in _LANES:
        own = timeline.of_queue(queue)
        if own:
            lanes.append((queue, own))
    end_ns = max([round(1e9 * timeline.step_s), *(own[-1].end_ns for _, own in lanes), 1])
    height = _SCALE + _LANE * len(lanes)
    drawn = [_scale(end_ns, height)]
    for number, (queue, own) in enumerate(lanes):
        bars = [_bar(each, end_ns, _SCALE + _LANE * number) for each in own]
        drawn.append(element("g", bars, class_="lane", role="group", aria_label=f"{_LANES[queue]}, modelled"))
    label = "The modelled queues of one device from the start to the end of a step; the sums are in the table below"
    chart = element("svg", drawn, width="100%", height=height, role="group", aria_label=label, id="lanes")
    names = [element("span", _LANES[queue]) for queue, _ in lanes]
    return element(
        "div", element("div", names, class_="names"), element("div", chart, class_="wide"), class_="queues chart"
    )


def _scale(end_ns: int, height: float) -> Markup:
    """Lines at round times; finer ones are shown when the drawing is wider."""
    step_ns = next(
        factor * 10**power
        for power in itertools.count()
        for factor in (1, 2, 5)
        if end_ns <= _LINES * factor * 10**power
    )
    drawn, known = list[Markup](), set[int]()
    for level in ("", " fine", " finest"):
        for number in range(end_ns // step_ns + 1):
            at_ns = number * step_ns
            if at_ns in known:
                continue
            known.add(at_ns)
            percent = 100 * at_ns / end_ns
            side = "start" if percent < 2 else "end" if percent > 97 else "middle"
            x = _percent(percent)
            line = element("line", x1=x, x2=x, y1=_SCALE - 6, y2=height, class_="grid")
            text = element("text", f"{at_ns / 1e6:.6g} ms", x=x, y=12, text_anchor=side, class_="label")
            drawn.append(element("g", line, text, class_=f"tick{level}"))
        if step_ns % _FINER:
            break
        step_ns //= _FINER
    return element("g", drawn, aria_hidden="true")


def _bar(each: TimelineEntry, end_ns: int, top: int) -> Markup:
    shapes = [
        element(
            "rect",
            x=_percent(100 * start_ns / end_ns),
            y=top + _BAR - height,
            width=_percent(max(100 * (stop_ns - start_ns) / end_ns, _NARROWEST)),
            height=height,
            class_=f"shape {colour}",
        )
        for start_ns, stop_ns, height, colour in _shapes(each)
    ]
    return element("g", element("title", _tip(each)), shapes, class_="entry", role="img", tabindex="-1")


def _shapes(each: TimelineEntry) -> Iterator[tuple[int, int, int, str]]:
    """Start, end, height and colour of what is drawn for an entry."""
    if each.queue == "communicating":
        # What is waited for is the end of a collective.
        exposed_from_ns = each.end_ns - each.exposed_ns
        if exposed_from_ns > each.start_ns or not each.exposed_ns:
            yield each.start_ns, exposed_from_ns, _HIDDEN, "c2"
        if each.exposed_ns:
            yield exposed_from_ns, each.end_ns, _BAR, "c3"
        return
    colours = {"product": "c0", "loop": "c6"}
    yield each.start_ns, each.end_ns, _BAR, "c4" if each.queue == "copying" else colours.get(each.kind, "c5")


def _tip(each: TimelineEntry) -> str:
    name = _name(each.kind)
    if each.count > 1:
        name = f"{each.count:,} instructions: {name}" if each.kind == SEVERAL else f"{each.count:,} times {name}"
    lines = [f"{name}, {_time(each.busy_ns)} modelled"]
    if each.queue == "communicating":
        lines.append(f"{_time(each.busy_ns - each.exposed_ns)} beside computation, {_time(each.exposed_ns)} waited for")
    if each.size_bytes:
        lines.append(quantities.size(each.size_bytes))
    lines.append(f"from {_time(each.start_ns)} to {_time(each.end_ns)}")
    return "\n".join(lines)


def _table(timeline: StepTimeline) -> Markup:
    """The sums of the queues, and of the kinds in them."""
    sums: dict[Queue, tuple[float, str, str]] = {
        "computing": (timeline.computing_s, "", ""),
        "communicating": (
            timeline.communicating_s,
            quantities.time(timeline.hidden_s),
            quantities.time(timeline.exposed_s),
        ),
        "copying": (
            sum(each.busy_ns for each in timeline.kinds if each.queue == "copying") / 1e9,
            "",
            quantities.time(timeline.copies_s),
        ),
    }
    rows = list[tuple[str | Markup, ...]]()
    for queue, name in _LANES.items():
        own = [each for each in timeline.kinds if each.queue == queue]
        seconds, hidden, exposed = sums[queue]
        if not own and not seconds:
            continue
        part = words.share(seconds, timeline.step_s)
        rows.append((element("strong", name), "", quantities.time(seconds), part, hidden, exposed, ""))
        rows += [_row(each, timeline.step_s) for each in own]
    head = ("What", "Times", "Modelled", "Of the step", "Beside computation", "Waited for", "Bytes")
    return table(head, rows, "<>>>>>>", "The modelled step of one device by queue and kind")


def _row(each: KindTotal, step_s: float) -> tuple[str | Markup, ...]:
    communicates = each.queue == "communicating"
    return (
        element("span", _name(each.kind), class_="within"),
        f"{each.count:,}",
        _time(each.busy_ns),
        words.share(each.busy_ns / 1e9, step_s),
        _time(each.busy_ns - each.exposed_ns) if communicates else "",
        _time(each.exposed_ns) if communicates else "",
        quantities.size(each.size_bytes) if each.size_bytes else "",
    )


def _name(kind: str) -> str:
    return {"loop": "further trips of a loop", SEVERAL: "of several kinds"}.get(kind, kind)


def _time(nanoseconds: int) -> str:
    return quantities.time(nanoseconds / 1e9)


def _percent(value: float) -> str:
    return f"{value:.4f}%"
