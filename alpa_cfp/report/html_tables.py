"""The tables and strips on the HTML page: whole plans that were tried, strategies, contributions to time and memory."""

from collections.abc import Callable, Sequence

from alpa_cfp import quantities
from alpa_cfp.plan.plan_report import TriedPlan
from alpa_cfp.report import words
from alpa_cfp.report.html_drawing import Drawing, anchor, bar, path, swatch, table
from alpa_cfp.report.markup import Markup, element, join
from alpa_cfp.report.text import searched
from alpa_cfp.report.totals import MemoryShare, TimeShare, memories, moves_s, parts_s, times

# Number of contributions in a table.
_MOST = 12
# Number of letters that fit into one percent of a strip in the narrower column.
_LETTERS = 0.75


def tried(drawing: Drawing) -> Markup:
    """The whole plans that were timed, predicted beside measured."""
    plans = drawing.report.tried
    if not plans:
        return element("p", "No plan was compiled and timed end to end; this one is the best predicted.")
    longest = max(max(each.predicted_s, each.measured_s or 0.0) for each in plans)
    fastest = min((each.measured_s for each in plans if each.measured_s is not None), default=None)
    found = words.found(drawing.plan)
    head = ("Plan", found.capitalize(), "Predicted", f"{found.capitalize()} over predicted", "Against the fastest")
    head += ("Memory", "Collectives")
    rows = [_tried(each, longest, fastest, found) for each in plans]
    return table(head, rows, "<>><<>>", title_of_tried(drawing))


def title_of_tried(drawing: Drawing) -> str:
    """What was done with the whole plans."""
    return "Plans compiled whole" if words.is_modelled(drawing.plan) else "Plans timed end to end"


def _tried(each: TriedPlan, longest: float, fastest: float | None, found: str) -> tuple[str | Markup, ...]:
    bars = [bar(each.predicted_s, longest, "predicted")]
    if each.measured_s is not None:
        bars.insert(0, bar(each.measured_s, longest, found))
    name = element("strong", each.name, " (this plan)") if each.chosen else each.name
    if each.failure:
        against = f"failed: {words.failure(each.failure, 200)}"
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
    """The strategies with their colours; the page's script makes them buttons that highlight their blocks."""
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
    extra = [("move", "moves between blocks", moves_s(drawing.report))]
    if any(drawing.chosen(block).time_s is None for block in range(len(drawing.report.blocks))):
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
    report, total = drawing.report, parts_s(drawing.report)
    parts = [(used.colour, used.letter, used.text, used.time_s) for used in drawing.used.values()]
    parts.append(("move", "moves", "moves between blocks", moves_s(report)))
    parts.append(("start", "start", "starting the program", report.overhead_s))
    return strip_of(parts, total, quantities.time)


def memory_strip(drawing: Drawing) -> Markup:
    """The predicted memory of a device by its use, as one bar."""
    memory = drawing.plan.memory
    parts = [
        ("c0", "state", "parameters, optimizer state and results", float(memory.state)),
        ("c1", "backward pass", "kept for the backward pass", float(memory.saved)),
        ("c2", "peak transient", "the most that is needed for a short time", float(memory.transient)),
    ]
    return strip_of(parts, float(memory.total), quantities.size)


def strip_of(parts: Sequence[tuple[str, str, str, float]], total: float, amount: Callable[[float], str]) -> Markup:
    """A bar of parts.

    Args:
        parts: The colour of each, its short and its full name, and its amount.
        total: The sum of all.
        amount: Writes an amount.
    """
    drawn = []
    for colour, short, text, part in parts:
        if total <= 0 or part <= 0:
            continue
        percent = 100 * part / total
        label = f"{short} {words.share(part, total)}" if percent * _LETTERS > len(short) + 6 else ""
        tip = f"{text}: {amount(part)}, {words.share(part, total)}"
        drawn.append(element("span", label, class_=f"piece {colour}", style=f"flex-grow:{percent:.3f}", title=tip))
    spoken = "; ".join(f"{text}: {amount(part)}" for _, _, text, part in parts if part > 0)
    return element("div", drawn, class_="strip", role="img", aria_label=spoken)


def time_table(drawing: Drawing) -> Markup:
    """The largest contributions to the time of a step."""
    total = parts_s(drawing.report)
    shares = times(drawing)
    rows = [_time(drawing, each, total) for each in shares[:_MOST]]
    rest = sum(each.time_s for each in shares[_MOST:])
    if rest:
        rows.append(("all else", "", quantities.time(rest), words.share(rest, total), bar(rest, total)))
    return table(("What", "Times", "Together", "Share", ""), rows, "<>>><", "Where the time goes")


def _time(drawing: Drawing, each: TimeShare, total: float) -> tuple[str | Markup, ...]:
    name, colour = path(each.name), "move"
    if each.block is not None:
        name = element("a", path(each.name), href=f"#{anchor(each.block)}")
        colour = drawing.used_by(each.block.first).colour
    count = f"{each.count:,}" if each.count > 1 else ""
    part = words.share(each.time_s, total)
    return (name, count, quantities.time(each.time_s), part, bar(each.time_s, total, colour))


def memory_table(drawing: Drawing) -> Markup:
    """The largest contributions to the memory of a device."""
    shares = [each for each in memories(drawing) if each.lasting_bytes]
    total = sum(each.lasting_bytes for each in shares)
    rows = [_memory(drawing, each, total) for each in shares[:_MOST]]
    rest = sum(each.lasting_bytes for each in shares[_MOST:])
    if rest:
        rows.append(("all else", "", "", "", quantities.size(rest), bar(rest, total)))
    head = ("Block", "Times", "State", "Backward pass", "Together", "")
    return table(head, rows, "<>>>><", "Where the memory goes")


def _memory(drawing: Drawing, each: MemoryShare, total: int) -> tuple[str | Markup, ...]:
    return (
        element("a", path(each.block.full_name), href=f"#{anchor(each.block)}"),
        f"{each.block.count:,}" if each.block.count > 1 else "",
        quantities.size(each.state_bytes),
        quantities.size(each.saved_bytes),
        quantities.size(each.lasting_bytes),
        bar(each.lasting_bytes, total, drawing.used_by(each.block.first).colour),
    )


def without_rule(drawing: Drawing) -> Markup:
    """The ops that have no sharding rule."""
    found = [
        element("li", element("code", ", ".join(ops)), " in ", element("a", block.full_name, href=f"#{anchor(block)}"))
        for block in drawing.blocks
        if (ops := drawing.kind(block).without_rule)
    ]
    if not found:
        return element("p", "Every op has a sharding rule.")
    return join((element("p", "Every device computes these whole."), element("ul", found)))


def caveats(drawing: Drawing) -> Markup:
    """The fallbacks and omissions of the planner, in bold if the plan may be worse because of them."""
    bound = searched(drawing.plan)
    items = [element("li", element("strong", bound))] if bound else []
    for each in drawing.report.caveats:
        items.append(element("li", element("strong", each.text) if each.may_cost else each.text))
    return element("ul", items)
