"""The tables and strips of a report: takes a drawing, gives what was tried whole, the strategies, and where time and
memory go.
"""

from collections.abc import Callable, Sequence

from alpa_cfp import quantities
from alpa_cfp.plan.plan_report import Tried
from alpa_cfp.report import words
from alpa_cfp.report.choices import failure
from alpa_cfp.report.markup import Markup, element, join
from alpa_cfp.report.report_drawing import Drawing, anchor, bar, path, swatch, table
from alpa_cfp.report.text import searched
from alpa_cfp.report.totals import MemoryShare, TimeShare, memories, moves_s, parts_s, times

# How many contributions are in a table.
_MOST = 12
# How many letters a percent of a strip has room for, in the narrower column.
_LETTERS = 0.75


def tried(drawing: Drawing) -> Markup:
    """The whole plans that were timed, predicted beside measured."""
    plans = drawing.account.tried
    if not plans:
        return element("p", "No plan was compiled and run whole; this one is the best predicted.")
    longest = max(max(each.predicted_s, each.measured_s or 0.0) for each in plans)
    fastest = min((each.measured_s for each in plans if each.measured_s is not None), default=None)
    head = ("Plan", "Measured", "Predicted", "Measured over predicted", "Against the fastest", "Memory", "Collectives")
    return table(head, [_tried(each, longest, fastest) for each in plans], "<>><<>>", "Plans that were run whole")


def _tried(each: Tried, longest: float, fastest: float | None) -> tuple[str | Markup, ...]:
    bars = [bar(each.predicted_s, longest, "predicted")]
    if each.measured_s is not None:
        bars.insert(0, bar(each.measured_s, longest, "measured"))
    name = element("strong", each.name, " (this plan)") if each.chosen else each.name
    if each.failure:
        against = f"failed: {failure(each.failure, 200)}"
    elif each.measured_s is None or fastest is None:
        against = "not run"
    else:
        against = "the fastest" if each.measured_s == fastest else words.slower(each.measured_s, fastest)
    return (
        name,
        "" if each.measured_s is None else quantities.time(each.measured_s),
        quantities.time(each.predicted_s),
        element("span", bars, class_="bars"),
        against,
        "" if each.needed_bytes is None else quantities.size(each.needed_bytes),
        "" if each.failure else words.count_of_collectives(each.collectives),
    )


def legend(drawing: Drawing) -> Markup:
    """The strategies with their colours; where the page's script runs, they are buttons that point out their blocks."""
    items = [
        element(
            "li",
            element(
                "button",
                swatch(used),
                element("span", used.text),
                element(
                    "span", f"{quantities.plural(used.blocks, 'block')}, {quantities.time(used.time_s)}", class_="quiet"
                ),
                type="button",
                disabled=True,
                aria_pressed="false",
                data_strategy=used.letter,
            ),
        )
        for used in drawing.used.values()
    ]
    extra = [("move", "moves between blocks", moves_s(drawing.account))]
    if any(drawing.chosen(block).time_s is None for block in range(len(drawing.account.blocks))):
        extra.append(("unknown", "time unknown", 0.0))
    items += [
        element(
            "li",
            element("span", class_=f"swatch {colour}"),
            element("span", text),
            element("span", quantities.time(seconds) if seconds else "", class_="quiet"),
            class_="plain",
        )
        for colour, text, seconds in extra
        if seconds or colour == "unknown"
    ]
    return element("ul", items, class_="legend", aria_label="Strategies")


def strip(drawing: Drawing) -> Markup:
    """The time of a step by strategy, as one bar."""
    account, total = drawing.account, parts_s(drawing.account)
    parts = [(used.colour, used.letter, used.text, used.time_s) for used in drawing.used.values()]
    parts.append(("move", "moves", "moves between blocks", moves_s(account)))
    parts.append(("start", "start", "starting the program", account.overhead_s))
    return _strip(parts, total, quantities.time)


def memory_strip(drawing: Drawing) -> Markup:
    """The predicted memory of a device by what it is for, as one bar."""
    memory = drawing.plan.memory
    parts = [
        ("c0", "state", "parameters, optimizer state and results", float(memory.state)),
        ("c1", "backward pass", "kept for the backward pass", float(memory.saved)),
        ("c2", "briefly", "the most that is needed for a short time", float(memory.transient)),
    ]
    return _strip(parts, float(memory.total), quantities.size)


def _strip(parts: Sequence[tuple[str, str, str, float]], total: float, said: Callable[[float], str]) -> Markup:
    drawn = []
    for colour, short, text, part in parts:
        if total <= 0 or part <= 0:
            continue
        percent = 100 * part / total
        label = f"{short} {words.share(part, total)}" if percent * _LETTERS > len(short) + 6 else ""
        tip = f"{text}: {said(part)}, {words.share(part, total)}"
        drawn.append(element("span", label, class_=f"piece {colour}", style=f"flex-grow:{percent:.3f}", title=tip))
    spoken = "; ".join(f"{text}: {said(part)}" for _, _, text, part in parts if part > 0)
    return element("div", drawn, class_="strip", role="img", aria_label=spoken)


def time_table(drawing: Drawing) -> Markup:
    """What takes most of the time."""
    total = parts_s(drawing.account)
    shares = times(drawing.account, drawing.segments)
    rows = [_time(drawing, each, total) for each in shares[:_MOST]]
    rest = sum(each.time_s for each in shares[_MOST:])
    if rest:
        rows.append(("all else", "", quantities.time(rest), words.share(rest, total), bar(rest, total)))
    return table(("What", "Times", "Together", "Share", ""), rows, "<>>><", "Where the time goes")


def _time(drawing: Drawing, each: TimeShare, total: float) -> tuple[str | Markup, ...]:
    name, colour = path(each.name), "move"
    if each.place is not None:
        name = element("a", path(each.name), href=f"#{anchor(each.place)}")
        colour = drawing.used_by(drawing.segments[each.place.segment].first[each.place.position]).colour
    times = f"{each.count:,}" if each.count > 1 else ""
    part = words.share(each.time_s, total)
    return (name, times, quantities.time(each.time_s), part, bar(each.time_s, total, colour))


def memory_table(drawing: Drawing) -> Markup:
    """What takes most of the memory."""
    shares = [each for each in memories(drawing.account, drawing.segments) if each.lasting_bytes]
    total = sum(each.lasting_bytes for each in shares)
    rows = [_memory(drawing, each, total) for each in shares[:_MOST]]
    rest = sum(each.lasting_bytes for each in shares[_MOST:])
    if rest:
        rows.append(("all else", "", "", "", quantities.size(rest), bar(rest, total)))
    head = ("Block", "Times", "State", "Backward pass", "Together", "")
    return table(head, rows, "<>>>><", "Where the memory goes")


def _memory(drawing: Drawing, each: MemoryShare, total: int) -> tuple[str | Markup, ...]:
    colour = drawing.used_by(drawing.segments[each.place.segment].first[each.place.position]).colour
    return (
        element("a", path(each.name), href=f"#{anchor(each.place)}"),
        f"{each.count:,}" if each.count > 1 else "",
        quantities.size(each.state_bytes),
        quantities.size(each.saved_bytes),
        quantities.size(each.lasting_bytes),
        bar(each.lasting_bytes, total, colour),
    )


def without_rule(drawing: Drawing) -> Markup:
    """The ops that have no sharding rule."""
    found = []
    for number, segment in enumerate(drawing.segments):
        for position, block in enumerate(segment.first):
            ops = drawing.account.kinds[drawing.account.blocks[block].kind].without_rule
            if ops:
                link = element("a", segment.full_names[position], href=f"#block-{number}-{position}")
                found.append(element("li", element("code", ", ".join(ops)), " in ", link))
    if not found:
        return element("p", "Every op has a sharding rule.")
    return join((element("p", "Every device computes these whole."), element("ul", found)))


def caveats(drawing: Drawing) -> Markup:
    """What the planner had to do without; what may have made the plan worse is said in bold."""
    said = [element("li", element("strong", searched(drawing.plan)))] if searched(drawing.plan) else []
    for each in drawing.account.caveats:
        said.append(element("li", element("strong", each.text) if each.may_cost else each.text))
    return element("ul", said)
