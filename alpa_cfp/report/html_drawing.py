"""The common parts of the HTML page: the plan with a colour and a letter for each of its strategies, bars and tables.

Invariants: the strategy that takes most time has the first colour; a colour never appears without its letter, so that
the page can be read without distinguishing colours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_report import PlanReport
from alpa_cfp.report.folding import FoldedBlock, FoldedPlan, fold
from alpa_cfp.report.markup import Markup, element, join

# This many strategies have their own colours in report.css; the others share the next one.
_COLOURS = 8


@dataclass(frozen=True, slots=True)
class Used:
    """A strategy that a plan uses.

    Attributes:
        text: The strategy in words.
        letter: Its letter.
        colour: Its class in report.css.
        blocks: Number of blocks with it.
        time_s: Sum of their times.
    """

    text: str
    letter: str
    colour: str
    blocks: int
    time_s: float


@dataclass(frozen=True, slots=True)
class Drawing(FoldedPlan):
    """A plan with the colours and letters of its strategies.

    Attributes:
        used: The strategies that it uses, by their text.
    """

    used: dict[str, Used]

    @classmethod
    def of(cls, plan: Plan, report: PlanReport) -> "Drawing":
        """Draws a plan."""
        folded = FoldedPlan(plan, report, fold(report))
        totals: dict[str, tuple[int, float]] = {}
        for block in report.blocks:
            own = report.chosen(block)
            count, seconds = totals.get(folded.strategy(own), (0, 0.0))
            totals[folded.strategy(own)] = count + 1, seconds + (own.time_s or 0.0)
        ordered = sorted(totals.items(), key=lambda item: -item[1][1])
        used = {
            text: Used(text, letter(number), f"c{min(number, _COLOURS)}", *total)
            for number, (text, total) in enumerate(ordered)
        }
        return cls(plan, report, folded.segments, used)

    def used_by(self, index: int) -> Used:
        """The strategy of a block of the program."""
        return self.used[self.strategy(self.chosen(index))]


def letter(number: int) -> str:
    """A, B, ... Z, AA, AB, ..."""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("A") + rest) + text
    return text


def anchor(block: FoldedBlock) -> str:
    """The id of a block in the page."""
    return f"block-{block.segment}-{block.position}"


def swatch(used: Used) -> Markup:
    """The colour and the letter of a strategy."""
    return element("span", used.letter, class_=f"swatch {used.colour}", title=used.text)


def path(name: str) -> Markup:
    """A name that can be wrapped after its slashes."""
    return join(name.split("/"), join(("/", element("wbr"))))


def bar(part: float, whole: float, colour: str = "plain") -> Markup:
    """A small horizontal bar for a part of a whole."""
    percent = 100 * part / whole if whole > 0 else 0.0
    inner = element("span", class_=f"fill {colour}", style=f"width:{min(max(percent, 0.0), 100.0):.2f}%")
    return element("span", inner, class_="bar", aria_hidden="true")


def table(head: Sequence[str], rows: Sequence[Sequence[str | Markup]], sides: str, caption: str = "") -> Markup:
    """A table.

    Args:
        head: The titles of its columns.
        rows: Texts or markup.
        sides: For each column "<" for text, ">" for numbers.
        caption: A description for screen readers.
    """
    classes = [None if side == "<" else "number" for side in sides]
    titles = [element("th", text, scope="col", class_=own) for text, own in zip(head, classes, strict=True)]
    body = [
        element("tr", [element("td", cell, class_=own) for cell, own in zip(row, classes, strict=True)]) for row in rows
    ]
    named = element("caption", caption, class_="unseen") if caption else ""
    whole = element("table", named, element("thead", element("tr", titles)), element("tbody", body))
    return element("div", whole, class_="wide")
