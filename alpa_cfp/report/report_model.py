"""The model of a report: takes a drawing, gives its segments and blocks as boxes, with what each could have been.

Invariant: each folded block is one box that opens; every block of every copy is named.
"""

from alpa_cfp import quantities
from alpa_cfp.plan.plan_report import Alternative
from alpa_cfp.report import words
from alpa_cfp.report.choices import failure, ordered, verdict
from alpa_cfp.report.folding import BlockPosition, Folded, FoldedMove, fold_moves
from alpa_cfp.report.markup import Markup, element, join
from alpa_cfp.report.report_drawing import Drawing, anchor, bar, swatch, table
from alpa_cfp.report.totals import parts_s


def model(drawing: Drawing) -> Markup:
    """All segments, with what is moved between them."""
    arriving: dict[BlockPosition, list[FoldedMove]] = {}
    for move in fold_moves(drawing.account, drawing.segments):
        first, second = move.first, move.second
        later = second if (second.segment, second.position) >= (first.segment, first.position) else first
        arriving.setdefault(later, []).append(move)
    return join(_segment(drawing, number, arriving) for number in range(len(drawing.segments)))


def _segment(drawing: Drawing, number: int, arriving: dict[BlockPosition, list[FoldedMove]]) -> Markup:
    segment = drawing.segments[number]
    inside = []
    for position in range(len(segment.first)):
        place = BlockPosition(number, position)
        inside += [_move(drawing, move) for move in arriving.get(place, [])]
        inside.append(_block(drawing, place))
    if segment.count > 1:
        inside.append(_copies(drawing, segment))
    if segment.count == 1 and len(segment.first) == 1:
        return element("section", inside, class_="segment single")
    seconds = segment.count * sum(drawing.chosen(block).time_s or 0.0 for block in segment.first)
    times = [element("span", f"× {segment.count}", class_="times")] if segment.count > 1 else []
    said = f"{quantities.time(seconds)}, {words.share(seconds, parts_s(drawing.account))} of the step"
    title = element("h3", segment.title, " ", times, element("span", said, class_="quiet"))
    return element("section", title, inside, class_=f"segment{' repeated' if segment.count > 1 else ''}")


def _move(drawing: Drawing, move: FoldedMove) -> Markup:
    times = f" × {move.count}" if move.count > 1 else ""
    collectives = quantities.plural(round(move.collectives / move.count), "collective")
    size = quantities.size(move.size_bytes / move.count)
    said = f"{size} in {collectives}, {quantities.time(move.time_s / move.count)}{times}"
    names = f"from {drawing.name(move.first)} to {drawing.name(move.second)}"
    return element("p", element("span", "moved", class_="tag"), f" {names}: {said}", class_="moved")


def _block(drawing: Drawing, place: BlockPosition) -> Markup:
    segment = drawing.segments[place.segment]
    indices = [copy[place.position] for copy in segment.copies]
    block = drawing.account.blocks[indices[0]]
    own, used, total = drawing.chosen(indices[0]), drawing.used_by(indices[0]), parts_s(drawing.account)
    seconds = segment.count * (own.time_s or 0.0)
    held = block.state_bytes + block.saved_bytes + block.transient_bytes
    each = " each" if segment.count > 1 else ""
    part = "?" if own.time_s is None else words.share(seconds, total)
    name = segment.names[place.position]
    times = f" × {segment.count}" if segment.count > 1 and len(segment.first) == 1 else ""
    summary = element(
        "summary",
        swatch(used),
        element(
            "span",
            element("span", f"{name}{times}", class_="name"),
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
        element("div", _inside(drawing, place, indices), class_="inside"),
        id=anchor(place),
        class_="block",
        data_strategy=used.letter,
        data_blocks=" ".join(map(str, indices)),
    )


def _inside(drawing: Drawing, place: BlockPosition, indices: list[int]) -> Markup:
    """What a block says when it is opened."""
    account = drawing.account
    block = account.blocks[indices[0]]
    kind, own = account.kinds[block.kind], drawing.chosen(indices[0])
    facts = {
        "Name": drawing.name(place),
        "Contraction": f"{kind.contraction}; {quantities.plural(kind.ops, 'op')}",
        "Strategy": drawing.strategy(own),
        "Communicates": words.communications(own, account.axis_names, most=6),
        "Memory": words.memory(block.state_bytes, block.saved_bytes, block.transient_bytes),
        "Weights": ", ".join(block.weights) + (" and those of the other copies" if len(indices) > 1 else "")
        if block.weights
        else "",
        "Ops without a sharding rule": ", ".join(kind.without_rule),
    }
    listed = [join((element("dt", name), element("dd", text))) for name, text in facts.items() if text]
    rows = [_row(drawing, each, own) for each in ordered(kind)]
    head = ("", "Strategy", "Time", "Against the chosen one", "Memory", "Communicates")
    title = element("h4", f"All {len(rows)} strategies of this block, the fastest by itself first")
    return join((element("dl", listed), title, table(head, rows, "<<><><", f"Alternatives of {drawing.name(place)}")))


def _row(drawing: Drawing, each: Alternative, own: Alternative) -> tuple[str | Markup, ...]:
    used = drawing.used.get(drawing.strategy(each))
    is_own = each is own
    text = drawing.strategy(each)
    said = f"cannot be run: {failure(each.failure, 200)}" if each.failure else verdict(each, own)
    time = "" if each.failure and each.time_s is None else quantities.time(each.time_s)
    return (
        swatch(used) if used else "",
        element("strong", text, " (chosen)") if is_own else text,
        element("span", time, title=each.source if each.time_s is not None else None),
        "" if is_own else said + (" (estimated)" if each.source == "estimated" and not each.failure else ""),
        element(
            "span",
            quantities.size(words.held(each)),
            title=words.memory(each.state_bytes, each.saved_bytes, each.transient_bytes),
        ),
        words.communications(each, drawing.account.axis_names),
    )


def _copies(drawing: Drawing, segment: Folded) -> Markup:
    """All copies of a segment, block by block."""
    rows = []
    for number, copy in enumerate(segment.copies):
        chips = [
            element(
                "span",
                element("span", drawing.used_by(block).letter, class_=f"swatch {drawing.used_by(block).colour}"),
                drawing.account.blocks[block].name,
                class_="chip",
                data_strategy=drawing.used_by(block).letter,
            )
            for block in copy
        ]
        rows.append(element("li", chips, value=str(number + 1)))
    said = f"Show all {segment.count} copies, block by block"
    return element("details", element("summary", said), element("ol", rows), class_="copies")
