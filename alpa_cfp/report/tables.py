"""Columns of text that are aligned: takes rows, gives lines. Invariant: no line ends in spaces."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], sides: str, indent: int = 0) -> list[str]:
    """Rows as lines whose columns are aligned.

    Args:
        rows: Texts; all rows have as many.
        sides: For each column "<" or ">", to which side its texts go.
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
