"""The timeline on the HTML page: a bar chart of the times of blocks and moves, in program order.

Invariant: every block of the program and every move has one bar, which links to a block of the model.
"""

from alpa_cfp import quantities
from alpa_cfp.plan.plan_report import Move
from alpa_cfp.report import words
from alpa_cfp.report.folding import FoldedBlock
from alpa_cfp.report.html_drawing import Drawing, anchor
from alpa_cfp.report.markup import Markup, element, join

_HEIGHT, _LEFT, _BOTTOM, _TOP = 190.0, 58.0, 30.0, 10.0
# The intended width of the chart, and the limits of the width of a bar.
_WIDTH, _LEAST, _MOST = 1060.0, 4.0, 56.0
_LETTER = 6.4


def timeline(drawing: Drawing) -> Markup:
    """The chart."""
    folded, bars = drawing.block_of(), _order(drawing)
    pitch = min(max(_WIDTH / max(len(bars), 1), _LEAST), _MOST)
    highest = max((_seconds(drawing, each) or 0.0 for each in bars), default=0.0) or 1e-9
    step = _step(highest)
    scale = (_HEIGHT - _TOP) / highest
    width = _LEFT + max(pitch * len(bars), 300.0) + 10
    drawn = [_grid(step, highest, scale, width)]
    spans: dict[int, list[float]] = {}
    for number, each in enumerate(bars):
        left = _LEFT + number * pitch
        if isinstance(each, Move):
            drawn.append(_move(drawing, each, folded[each.second], left, pitch, scale))
            continue
        span = spans.setdefault(folded[each].segment, [left, left])
        span[1] = left + pitch
        drawn.append(_block(drawing, each, folded[each], left, pitch, scale))
    drawn += _brackets(drawing, spans)
    total = _HEIGHT + _BOTTOM
    label = (
        f"Bar chart of the predicted time of {len(drawing.report.blocks)} blocks and the moves between them, in "
        "program order; the same numbers are in the model below"
    )
    chart = element(
        "svg",
        drawn,
        viewBox=f"0 0 {width:.0f} {total:.0f}",
        width=f"{width:.0f}",
        height=f"{total:.0f}",
        role="group",
        aria_label=label,
        id="timeline",
    )
    return element("div", chart, class_="wide chart")


def _order(drawing: Drawing) -> list[int | Move]:
    """Blocks and moves; the moves to a block come before it."""
    arriving: dict[int, list[Move]] = {}
    for move in drawing.report.moves:
        if move.time_s > 0:
            arriving.setdefault(max(move.first, move.second), []).append(move)
    found: list[int | Move] = []
    for block in range(len(drawing.report.blocks)):
        found += [*arriving.get(block, []), block]
    return found


def _seconds(drawing: Drawing, each: int | Move) -> float | None:
    return each.time_s if isinstance(each, Move) else drawing.chosen(each).time_s


def _step(highest: float) -> float:
    """A round distance between lines, so that there are three to seven."""
    unit = 1e-9
    while True:
        for factor in (1, 2, 5):
            if highest / (unit * factor) <= 6:
                return unit * factor
        unit *= 10


def _grid(step: float, highest: float, scale: float, width: float) -> Markup:
    drawn = []
    for number in range(int(highest / step) + 1):
        height = _HEIGHT - number * step * scale
        drawn.append(element("line", x1=_LEFT, x2=width, y1=height, y2=height, class_="grid"))
        label = f"{number * step * 1e3:.6g} ms"
        drawn.append(element("text", label, x=_LEFT - 6, y=height + 4, text_anchor="end", class_="label"))
    return element("g", drawn, aria_hidden="true")


def _block(drawing: Drawing, index: int, target: FoldedBlock, left: float, pitch: float, scale: float) -> Markup:
    own, used, block = drawing.chosen(index), drawing.used_by(index), drawing.report.blocks[index]
    tip = "\n".join(
        (
            block.name,
            f"{quantities.time(own.time_s)}{'' if own.time_s is None else f' {own.source}'}",
            f"{used.letter}: {used.text}",
            f"memory {words.memory(block.state_bytes, block.saved_bytes, block.transient_bytes)}",
        )
    )
    known = own.time_s is not None
    height = max((own.time_s or 0.0) * scale, 2.0)
    shape = _bar(left, pitch, height, used.colour if known else "unknown")
    return _link(shape, tip, target, data_block=str(index), data_strategy=used.letter)


def _move(drawing: Drawing, move: Move, target: FoldedBlock, left: float, pitch: float, scale: float) -> Markup:
    first, second = (drawing.report.blocks[i].name for i in (move.first, move.second))
    collectives = quantities.plural(move.collectives, "collective")
    tip = (
        f"moving {first}\nto {second}\n{quantities.time(move.time_s)} predicted, {quantities.size(move.size_bytes)} "
        f"in {collectives}"
    )
    shape = _bar(left, pitch, max(move.time_s * scale, 2.0), "move")
    return _link(shape, tip, target, data_move=f"{move.first}-{move.second}")


def _bar(left: float, pitch: float, height: float, colour: str) -> Markup:
    gap = 1.0 if pitch < 12 else 2.0
    top, width = round(_HEIGHT - height, 2), round(pitch - gap, 2)
    # The whole column reacts to the pointer, because small bars are hard to hit.
    column = element("rect", x=round(left, 2), y=_TOP, width=round(pitch, 2), height=_HEIGHT - _TOP, class_="column")
    shape = element(
        "rect", x=round(left, 2), y=top, width=width, height=round(height, 2), rx=1.5, class_=f"shape {colour}"
    )
    return join((column, shape))


def _link(shape: Markup, tip: str, target: FoldedBlock, **data: str) -> Markup:
    return element(
        "a",
        element("title", tip),
        shape,
        href=f"#{anchor(target)}",
        tabindex="-1",
        aria_label=tip.replace("\n", ", "),
        data_tip=tip,
        **data,
    )


def _brackets(drawing: Drawing, spans: dict[int, list[float]]) -> list[Markup]:
    """The names of segments below their blocks, if there is room."""
    drawn = []
    for number, (left, right) in spans.items():
        segment = drawing.segments[number]
        line = element("line", x1=left, x2=right - 2, y1=_HEIGHT + 6, y2=_HEIGHT + 6, class_="bracket")
        text = segment.title + (f" × {segment.count}" if segment.count > 1 else "")
        room = int((right - left) / _LETTER)
        shown = text if len(text) <= room else f"{text[: room - 1]}…"
        label = element("text", shown, x=(left + right) / 2, y=_HEIGHT + 22, text_anchor="middle", class_="label")
        drawn.append(element("g", element("title", text), line, label if room > 3 else ""))
    return drawn
