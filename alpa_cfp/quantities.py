"""Numbers as short texts for users: seconds, bytes, counts, shapes; and aligned columns. Units are decimal."""

import math
from collections.abc import Iterable, Sequence

_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def digits(value: float, count: int = 3) -> str:
    """A number with `count` significant digits, no exponent, and commas between thousands: "1,530", "0.0412"."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    # Rounded first, so that 9.996 becomes 10.0 and not 10.00.
    rounded = float(f"{value:.{count - 1}e}")
    places = count - 1 - math.floor(math.log10(abs(rounded)))
    return f"{round(rounded, places):,.{max(places, 0)}f}"


def time(seconds: float | None) -> str:
    """Seconds as "12.3 ms"; "unknown" for None."""
    if seconds is None:
        return "unknown"
    if 0 < abs(seconds) < 5e-7:
        return "<0.001 ms"
    return f"{digits(seconds * 1e3)} ms"


def size(count: float) -> str:
    """Bytes as "4.2 MB", "1.25 GB"."""
    for unit, name in _UNITS:
        if abs(count) >= 0.9995 * unit:
            text = digits(count / unit)
            return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {name}"
    return f"{count:.0f} bytes" if count != 1 else "1 byte"


def plural(count: int, one: str) -> str:
    """ "1 block", "24 blocks"."""
    return f"{count:,} {one if count == 1 else one + 's'}"


def ordinal(number: int) -> str:
    """ "1st", "2nd", "11th"."""
    ending = "th" if 10 < number % 100 < 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def shape(sizes: Iterable[int]) -> str:
    """The sizes of a mesh or a tensor: "2x4"."""
    return "x".join(map(str, sizes))


def mesh(sizes: Sequence[int]) -> str:
    """A mesh by its shape: "2x4 mesh"; by its size if it has one axis: "8-device mesh"."""
    return f"{shape(sizes)} mesh" if len(sizes) > 1 else f"{math.prod(sizes)}-device mesh"


def a_mesh(sizes: Sequence[int]) -> str:
    """A mesh with its article: "a 2x4 mesh", "an 8-device mesh"."""
    # Of the numbers, 8, 11 and 18 are read with a vowel first, with or without thousands.
    first = f"{sizes[0] if sizes else 1:,}".split(",")[0]
    return f"{'an' if first.startswith('8') or first in ('11', '18') else 'a'} {mesh(sizes)}"


def aligned(rows: Sequence[Sequence[str]], sides: str, indent: int = 0) -> list[str]:
    """Rows of text as lines with aligned columns, without trailing spaces.

    Args:
        rows: The rows, all of the same length.
        sides: For each column its alignment, "<" or ">".
        indent: Spaces before each line.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        (
            " " * indent
            + "  ".join(f"{text:{side}{width}}" for text, side, width in zip(row, sides, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
