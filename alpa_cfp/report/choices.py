"""What a block could have been instead: takes a kind of block and what was chosen, gives the others in words.

Invariant: the fastest come first, then those of unknown time, then those that cannot be run.
"""

from alpa_cfp.plan.plan_report import Alternative, Kind
from alpa_cfp.report import words


def ordered(kind: Kind, chosen: int | None = None) -> tuple[Alternative, ...]:
    """The alternatives of a kind of block, the best first, without the chosen one if that is given."""
    others = [each for index, each in enumerate(kind.alternatives) if index != chosen]
    return tuple(sorted(others, key=lambda each: (bool(each.failure), each.time_s is None, each.time_s or 0.0)))


def verdict(alternative: Alternative, chosen: Alternative) -> str:
    """How an alternative compares with what was chosen: "12% slower", "time unknown", "cannot be run: ..."."""
    if alternative.failure:
        return f"cannot be run: {failure(alternative.failure)}"
    if alternative.time_s is None or chosen.time_s is None:
        return "time unknown" if alternative.time_s is None else "cannot be compared"
    return words.slower(alternative.time_s, chosen.time_s)


def failure(text: str, most: int = 120) -> str:
    """The reason of a failure in one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."
