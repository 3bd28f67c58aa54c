"""Makes HTML and SVG from names, attributes and texts.

Invariant: every text that is not markup already is escaped, in content and in attributes.
"""

import html
from collections.abc import Iterable


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


# HTML elements without an end tag.
_EMPTY = frozenset({"meta", "br", "wbr"})


def element(tag: str, /, *content: str | Iterable[str], **attributes: str | float | bool | None) -> Markup:
    """Makes an element.

    Args:
        tag: Its name.
        content: Texts, markup, or sequences of them.
        attributes: Its attributes; an underscore stands for a hyphen, one at the end for nothing. None and False leave
            an attribute out, True gives it no value.
    """
    return Markup(f"<{tag}{_attributes(attributes)}>{_inside(content)}{'' if tag in _EMPTY else f'</{tag}>'}")


def join(content: Iterable[str], between: str = "") -> Markup:
    """Concatenates texts and markup."""
    return Markup(escaped(between).join(map(escaped, content)))


def escaped(text: str) -> Markup:
    """Escapes a text that is not markup."""
    return text if isinstance(text, Markup) else Markup(html.escape(text))


def _inside(content: Iterable[str | Iterable[str]]) -> Markup:
    return join(escaped(each) if isinstance(each, str) else join(each) for each in content)


def _attributes(attributes: dict[str, str | float | bool | None]) -> str:
    written = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        own = name.rstrip("_").replace("_", "-")
        text = f"{value:g}" if isinstance(value, float) else str(value)
        written.append(f" {own}" if value is True else f' {own}="{html.escape(text)}"')
    return "".join(written)
