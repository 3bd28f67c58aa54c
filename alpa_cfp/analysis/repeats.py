"""Repeats: units of segments that stand several times in a row, and which of them a shorter program may leave out.

Takes a label for each segment of a program, equal for segments that may stand for each other; gives the repeats, and
the segments that are left out if each repeat has fewer units, with those that take their places. Invariants: repeats do
not overlap; what is left out is the middle of a repeat, so that what comes before and behind it keeps its neighbours;
the labels of a shorter program are those of the program with units of repeats removed.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from alpa_cfp.analysis.segments import repeated_runs


@dataclass(frozen=True, slots=True)
class Repeat:
    """Equal units in a row.

    Attributes:
        start: The first segment.
        period: The segments of a unit.
        count: The units.
    """

    start: int
    period: int
    count: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The segments in the place of one that is left out.

    Attributes:
        before: The one that corresponds to it in the last unit before the gap.
        after: The one in the first unit behind the gap.
        is_first: Whether it is in the first unit of the gap, whose place behind the one before the gap `after` takes.
    """

    before: int
    after: int
    is_first: bool


def find_repeats(labels: Sequence[Hashable], least: int) -> tuple[Repeat, ...]:
    """Returns the repeats of at least so many units, in order.

    Args:
        labels: A label for each segment.
        least: At least 2.
    """
    numbers: dict[Hashable, int] = {}
    runs = repeated_runs([numbers.setdefault(label, len(numbers)) for label in labels])
    found: list[Repeat] = []
    for start, stop in runs:
        period, last = stop - start, found[-1] if found else None
        if last is not None and (
            last.start + last.period * last.count == start
            and list(labels[last.start : last.start + last.period]) == list(labels[start:stop])
        ):
            found[-1] = Repeat(last.start, period, last.count + 1)
        else:
            found.append(Repeat(start, period, 1))
    return tuple(repeat for repeat in found if repeat.count >= least)


def left_out(copies: Mapping[Repeat, int]) -> dict[int, Gap]:
    """Returns the segments that are left out if each repeat has so many units, at least two and at most its own."""
    found: dict[int, Gap] = {}
    for repeat, kept in copies.items():
        omitted = repeat.count - kept
        # The units before the gap; the others stand behind it.
        first = kept - kept // 2
        for unit in range(first, first + omitted):
            for position in range(repeat.period):
                before, own, after = (
                    repeat.start + repeat.period * each + position for each in (first - 1, unit, first + omitted)
                )
                found[own] = Gap(before, after, unit == first)
    return found
