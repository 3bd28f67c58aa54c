"""Words and tables for a terminal: takes sizes, seconds and rows of cells; gives text.

Invariant: no line is longer than the width that is given, if the words allow it.
"""

import re
import textwrap
from collections.abc import Sequence
from itertools import groupby

_GAP = "  "


def wrapped(said: Sequence[str], width: int | None) -> list[str]:
    """Lines broken between words; what follows a name and two spaces stays below itself."""
    if width is None:
        return list(said)
    out: list[str] = []
    for line in said:
        named = re.match(r"\S+(?: \S+)*  +", line)
        indent = " " * len(named[0]) if named and len(named[0]) <= width // 2 else ""
        out += textwrap.wrap(line, max(width, 2), subsequent_indent=indent, break_on_hyphens=False) or [""]
    return out


def fitting(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """A table as lines; one that is too wide as several, below each other, each with the first column."""
    if len(rows[0]) == 1:
        return wrapped([row[0] for row in rows], width)
    widths = [max(len(row[column]) for row in rows) + len(_GAP) for column in range(len(rows[0]))]
    parts: list[list[int]] = [[0]]
    for column in range(1, len(widths)):
        used = sum(widths[kept] for kept in parts[-1]) + widths[column] - len(_GAP)
        if width is not None and len(parts[-1]) > 1 and used > width:
            parts.append([0])
        parts[-1].append(column)
    out: list[str] = []
    for part in parts:
        out += [*([""] if out else []), *aligned([[row[column] for column in part] for row in rows])]
    return out


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows with their columns aligned, the first to the left, the others to the right; a rule below the first row."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    out = [
        _GAP.join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [out[0], "-" * max(map(len, out)), *out[1:]]


def size_text(size_bytes: float) -> str:
    """Bytes in words: "9.8 MB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def time_text(seconds: float) -> str:
    """Milliseconds with three digits or so: "41.3 ms"."""
    milliseconds = seconds * 1e3
    return f"{milliseconds:.{1 if milliseconds >= 10 else 2}f} ms"


def filled(rows: list[list[str]]) -> list[list[str]]:
    """Return a table without the columns that are empty below the header; a header alone stays as it is."""
    if len(rows) == 1:
        return rows
    kept = [number for number in range(len(rows[0])) if any(row[number] for row in rows[1:])]
    return [[row[number] for number in kept] for row in rows]


def layers_text(layers: Sequence[int]) -> str:
    """The layers of a mesh: "0 to 2", or "0, 4 to 5" of several stages."""
    # Layers that follow each other differ from their places by the same.
    runs = [[layer for _, layer in run] for _, run in groupby(enumerate(layers), lambda item: item[1] - item[0])]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def shape_text(shape: Sequence[int]) -> str:
    """The shape of a mesh: "1x2"."""
    return "x".join(map(str, shape))
