"""The model on the HTML page: segments and blocks as boxes, each with its alternatives.

Invariant: each folded block is one box that opens; every block of every copy is named.
"""

from alpa_cfp import quantities
from alpa_cfp.plan.plan_report import Alternative
from alpa_cfp.report import words
from alpa_cfp.report.folding import FoldedBlock, FoldedMove, FoldedSegment
from alpa_cfp.report.html_drawing import Drawing, anchor, bar, swatch, table
from alpa_cfp.report.markup import Markup, element, join
from alpa_cfp.report.totals import parts_s


def model(drawing: Drawing) -> Markup:
    """All segments, with the moves between their blocks."""
    arriving: dict[FoldedBlock, list[FoldedMove]] = {}
    for move in drawing.moves():
        later = max(move.second, move.first, key=lambda block: (block.segment, block.position))
        arriving.setdefault(later, []).append(move)
    return join(_segment(drawing, segment, arriving) for segment in drawing.segments)


def _segment(drawing: Drawing, segment: FoldedSegment, arriving: dict[FoldedBlock, list[FoldedMove]]) -> Markup:
    inside = []
    for block in segment.blocks:
        inside += map(_move, arriving.get(block, []))
        inside.append(_block(drawing, segment, block))
    if segment.count > 1:
        inside.append(_copies(drawing, segment))
    if segment.count == 1 and len(segment.blocks) == 1:
        return element("section", inside, class_="segment single")
    seconds = segment.count * sum(drawing.chosen(block.first).time_s or 0.0 for block in segment.blocks)
    times = [element("span", f"× {segment.count}", class_="times")] if segment.count > 1 else []
    cost = f"{quantities.time(seconds)}, {words.share(seconds, parts_s(drawing.report))} of the step"
    title = element("h3", segment.title, " ", times, element("span", cost, class_="quiet"))
    return element("section", title, inside, class_=f"segment{' repeated' if segment.count > 1 else ''}")


def _move(move: FoldedMove) -> Markup:
    times = f" × {move.count}" if move.count > 1 else ""
    collectives = quantities.plural(round(move.collectives / move.count), "collective")
    size = quantities.size(move.size_bytes / move.count)
    cost = f"{size} in {collectives}, {quantities.time(move.time_s / move.count)}{times}"
    names = f"from {move.first.full_name} to {move.second.full_name}"
    return element("p", element("span", "moved", class_="tag"), f" {names}: {cost}", class_="moved")


def _block(drawing: Drawing, segment: FoldedSegment, folded: FoldedBlock) -> Markup:
    block = drawing.report.blocks[folded.first]
    own, used, total = drawing.chosen(folded.first), drawing.used_by(folded.first), parts_s(drawing.report)
    seconds = folded.count * (own.time_s or 0.0)
    held = block.state_bytes + block.saved_bytes + block.transient_bytes
    each = " each" if folded.count > 1 else ""
    part = "?" if own.time_s is None else words.share(seconds, total)
    times = f" × {folded.count}" if folded.count > 1 and len(segment.blocks) == 1 else ""
    summary = element(
        "summary",
        swatch(used),
        element(
            "span",
            element("span", f"{folded.name}{times}", class_="name"),
            element("span", used.text, class_="quiet"),
            class_="what",
        ),
        element("span", bar(seconds, total, used.colour), element("span", part), class_="part"),
        element("span", f"{quantities.time(own.time_s)}{each}", class_="figure"),
        element("span", f"{quantities.size(held)}{each}", class_="figure"),
    )
    return element(
        "details",
        summary,
        element("div", _details(drawing, folded), class_="inside"),
        id=anchor(folded),
        class_="block",
        data_strategy=used.letter,
        data_blocks=" ".join(map(str, folded.indices)),
    )


def _details(drawing: Drawing, folded: FoldedBlock) -> Markup:
    """The inside of a block that is opened."""
    block, kind, own = drawing.report.blocks[folded.first], drawing.kind(folded), drawing.chosen(folded.first)
    facts = {
        "Name": folded.full_name,
        "Contraction": f"{kind.contraction}; {quantities.plural(kind.ops, 'op')}",
        "Strategy": drawing.strategy(own),
        "Communicates": words.communications(own, drawing.report.axis_names, most=6),
        "Memory": words.memory(block.state_bytes, block.saved_bytes, block.transient_bytes),
        "Weights": ", ".join(block.weights) + (" and those of the other copies" if folded.count > 1 else "")
        if block.weights
        else "",
        "Ops without a sharding rule": ", ".join(kind.without_rule),
    }
    listed = [join((element("dt", name), element("dd", text))) for name, text in facts.items() if text]
    rows = [_row(drawing, each, own) for each in words.ordered(kind)]
    head = ("", "Strategy", "Time", "Against the chosen one", "Memory", "Communicates")
    title = element("h4", f"All {len(rows)} strategies of this block, the fastest by itself first")
    return join((element("dl", listed), title, table(head, rows, "<<><><", f"Alternatives of {folded.full_name}")))


def _row(drawing: Drawing, each: Alternative, own: Alternative) -> tuple[str | Markup, ...]:
    text, is_own = drawing.strategy(each), each is own
    used = drawing.used.get(text)
    if each.failure:
        against = f"cannot be run: {words.failure(each.failure, 200)}"
    else:
        against = words.verdict(each, own) + (" (estimated)" if each.source == "estimated" else "")
    time = "" if each.failure and each.time_s is None else quantities.time(each.time_s)
    return (
        swatch(used) if used else "",
        element("strong", text, " (chosen)") if is_own else text,
        element("span", time, title=each.source if each.time_s is not None else None),
        "" if is_own else against,
        element(
            "span",
            quantities.size(words.held(each)),
            title=words.memory(each.state_bytes, each.saved_bytes, each.transient_bytes),
        ),
        words.communications(each, drawing.report.axis_names),
    )


def _copies(drawing: Drawing, segment: FoldedSegment) -> Markup:
    """All copies of a segment, block by block."""
    rows = []
    for number, copy in enumerate(segment.copies):
        chips = [
            element(
                "span",
                element("span", drawing.used_by(block).letter, class_=f"swatch {drawing.used_by(block).colour}"),
                drawing.report.blocks[block].name,
                class_="chip",
                data_strategy=drawing.used_by(block).letter,
            )
            for block in copy
        ]
        rows.append(element("li", chips, value=str(number + 1)))
    summary = element("summary", f"Show all {segment.count} copies, block by block")
    return element("details", summary, element("ol", rows), class_="copies")
