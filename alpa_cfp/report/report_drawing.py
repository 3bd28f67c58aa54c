"""What all parts of the report draw with: takes a plan with its account, gives its folded segments and a colour and a
letter for each strategy that it uses.

Invariant: the strategy that takes most time has the first colour; a colour never stands without its letter, so that
the page can be read without telling colours apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_report import Alternative, PlanReport
from alpa_cfp.report import words
from alpa_cfp.report.folding import BlockPosition, Folded, chosen, fold
from alpa_cfp.report.markup import Markup, element, join

# So many strategies have colours of their own in report.css; more share the next one.
_COLOURS = 8


@dataclass(frozen=True, slots=True)
class Used:
    """A strategy that a plan uses.

    Attributes:
        text: In words.
        letter: What stands for it.
        colour: Its class in report.css.
        blocks: How many blocks have it.
        time_s: What they take together.
    """

    text: str
    letter: str
    colour: str
    blocks: int
    time_s: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """A plan that is drawn.

    Attributes:
        plan: The plan.
        account: Its account.
        segments: Its blocks, folded.
        used: Its strategies, by their words.
    """

    plan: Plan
    account: PlanReport
    segments: tuple[Folded, ...]
    used: dict[str, Used]

    @classmethod
    def of(cls, plan: Plan, account: PlanReport) -> "Drawing":
        """The drawing of a plan."""
        totals: dict[str, tuple[int, float]] = {}
        for block in account.blocks:
            own = chosen(account, block)
            text = words.strategy(own, plan.mesh_shape, account.axis_names)
            count, seconds = totals.get(text, (0, 0.0))
            totals[text] = count + 1, seconds + (own.time_s or 0.0)
        ordered = sorted(totals.items(), key=lambda item: -item[1][1])
        used = {
            text: Used(text, letter(number), f"c{min(number, _COLOURS)}", *total)
            for number, (text, total) in enumerate(ordered)
        }
        return cls(plan, account, fold(account), used)

    def chosen(self, block: int) -> Alternative:
        """What was chosen for a block."""
        return chosen(self.account, self.account.blocks[block])

    def strategy(self, alternative: Alternative) -> str:
        """A strategy in words."""
        return words.strategy(alternative, self.plan.mesh_shape, self.account.axis_names)

    def used_by(self, block: int) -> Used:
        """The strategy of a block."""
        return self.used[self.strategy(self.chosen(block))]

    def name(self, place: BlockPosition) -> str:
        """The name of a folded block."""
        return self.segments[place.segment].full_names[place.position]


def letter(number: int) -> str:
    """A, B, ... Z, AA, AB, ..."""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("A") + rest) + text
    return text


def anchor(place: BlockPosition) -> str:
    """The id of a folded block in the page."""
    return f"block-{place.segment}-{place.position}"


def swatch(used: Used) -> Markup:
    """The colour and the letter of a strategy."""
    return element("span", used.letter, class_=f"swatch {used.colour}", title=used.text)


def path(name: str) -> Markup:
    """A name that may be broken behind its slashes."""
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
        caption: What it is, for those who do not see it.
    """
    classes = [None if side == "<" else "number" for side in sides]
    titles = [element("th", text, scope="col", class_=own) for text, own in zip(head, classes, strict=True)]
    body = [
        element("tr", [element("td", cell, class_=own) for cell, own in zip(row, classes, strict=True)]) for row in rows
    ]
    named = element("caption", caption, class_="unseen") if caption else ""
    whole = element("table", named, element("thead", element("tr", titles)), element("tbody", body))
    return element("div", whole, class_="wide")
