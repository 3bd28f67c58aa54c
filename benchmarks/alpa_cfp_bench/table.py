"""A comparison as text for a terminal: takes a `Comparison` and the machine; gives lines.

Invariant: each number is explained below the table, in words of a user.
"""

import math
import re
import textwrap
from collections.abc import Sequence

from alpa_cfp_bench.case import CFP, ILP, ILP_AGAIN, METHODS, Effort
from alpa_cfp_bench.running import Compared, Comparison, Measured, Outcome
from alpa_cfp_bench.timing import Ratio

_GAP = "  "
STEP_COLUMNS = ("step", "spread", "ratio to ILP", "95% interval")
_IN_ONE_PROCESS = "all in one process, in random order"


def lines(found: Comparison, machine: dict[str, object], width: int | None = None) -> list[str]:
    """The whole report: what ran, a row for each method, what they communicate, what the numbers mean.

    Args:
        found: What came out.
        machine: As `machine.describe` gives it.
        width: Of the terminal, which no line exceeds if it can be; None for lines as long as they are.
    """
    return [
        *wrapped(head(found, machine), width),
        "",
        *fitting(_times(found), width),
        "",
        *fitting(_communication(found), width),
        "",
        *wrapped(_verdict(found) or ["no two of the programs are known to be the same"], width),
        "",
        *wrapped(_meaning(found, machine), width),
    ]


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


def title(found: Compared) -> str:
    """What ran, in a few words."""
    case = found.case
    parts = f" in {case.num_micro_batches} micro-batches" if case.num_micro_batches else ""
    return (
        f"A training step of {case.model} ({found.parameters:,} parameters, batch {case.size.batch}{parts}) "
        f"on a {case.mesh} mesh"
    )


def place(machine: dict[str, object]) -> str:
    """Where and when it ran, in a few words."""
    versions = machine["versions"]
    named = f"jax {versions['jax']}, alpa {versions['alpa']}" if isinstance(versions, dict) else ""
    virtual = " (virtual)" if _are_virtual(machine) else ""
    return f"{machine['devices']}{virtual} on {machine['cores']} cores, {machine['cpu']}; {named}; {machine['date']}"


def _are_virtual(machine: dict[str, object]) -> bool:
    return str(machine["devices"]).endswith(" cpu")


def head(found: Compared, machine: dict[str, object]) -> list[str]:
    """What ran, where, and whether it is right."""
    right = sum(outcome.is_right for outcome in found.outcomes)
    within = max((each.difference.relative for each in found.outcomes if each.is_right), default=0.0)
    return [
        title(found),
        place(machine),
        f"{right} of {len(found.outcomes)} methods give the serial run's loss and state after a step (within "
        f"{within:.0e} of each array's largest entry; {found.tolerance:.0e} is allowed)",
    ]


def wrong(found: Compared) -> list[str]:
    """A line for each method that is wrong."""
    return [
        f"{each.method} is WRONG: {each.difference.where} differs from the serial run by "
        f"{each.difference.relative:.1e} of its largest entry; it was not timed"
        for each in found.outcomes
        if not each.is_right
    ]


def filled(rows: list[list[str]]) -> list[list[str]]:
    """A table without the columns that have nothing below their name."""
    kept = [number for number in range(len(rows[0])) if any(row[number] for row in rows[1:])]
    return [[row[number] for number in kept] for row in rows]


def step_cells(outcome: Measured) -> list[str]:
    """What the columns `STEP_COLUMNS` have for a method."""
    if outcome.samples is None:
        return ["WRONG", "", "", ""]
    by = outcome.to_ilp
    return [
        time_text(outcome.samples.median_s),
        f"± {outcome.samples.spread:.0%}",
        "1" if outcome.method == ILP else f"{by.paired:.2f}" if by else "",
        f"{by.paired_low:.2f} to {by.paired_high:.2f}" if by else "",
    ]


def _times(found: Comparison) -> list[list[str]]:
    rows = [["method", "planning", *STEP_COLUMNS, "memory", "predicted"], *(_row(each) for each in found.outcomes)]
    return filled(rows)


def _row(outcome: Outcome) -> list[str]:
    return [
        outcome.method,
        f"{outcome.planning_s:.1f} s",
        *step_cells(outcome),
        size_text(outcome.memory_bytes),
        time_text(outcome.predicted_s) if outcome.is_right and outcome.predicted_s is not None else "",
    ]


def _communication(found: Comparison) -> list[list[str]]:
    kinds = sorted({each.kind for outcome in found.outcomes for each in outcome.traffic})
    if not kinds:
        return [["no method communicates"]]
    rows = [["communicated a step", *kinds, "in all"]]
    for outcome in found.outcomes:
        of = {each.kind: f"{each.count} x, {size_text(each.size_bytes)}" for each in outcome.traffic}
        total = sum(each.size_bytes for each in outcome.traffic)
        rows.append([outcome.method, *(of.get(kind, "") for kind in kinds), size_text(total)])
    return rows


def _verdict(found: Comparison) -> list[str]:
    said = wrong(found)
    said += [f"{each.method} has the same program as {each.same_as}" for each in found.outcomes if each.same_as]
    own, ilp = found.of(CFP), found.of(ILP)
    alike = own is not None and ilp is not None and (own.same_as == ILP or ilp.same_as in (CFP, own.same_as or CFP))
    if own is not None and own.to_ilp is not None and not alike:
        said.append(against_ilp("CFP's step", own.to_ilp))
    again = found.of(ILP_AGAIN)
    if again is not None and again.to_ilp is not None:
        said.append(f"two equal programs of Alpa's ILP differ by {abs(1 - again.to_ilp.paired):.0%} here")
    return [*said, *_settings(found)]


def _settings(found: Comparison) -> list[str]:
    """Of which settings a method's are the fastest."""
    said = []
    for each in found.outcomes:
        if len(each.settings) < 2:
            continue
        (chosen, of_chosen), *others = each.settings.items()
        if math.isnan(of_chosen):
            said.append(f"{each.method} has one program with all settings ({', '.join(each.settings)})")
            continue
        slower = ", ".join(f"{name} {seconds / of_chosen - 1:+.0%}" for name, seconds in others)
        said.append(f"{each.method} is that for {chosen}, the fastest in a run before this one ({slower})")
    return said


def against_ilp(step: str, by: Ratio) -> str:
    """What a ratio to the ILP's time says of a step."""
    if by.paired_low <= 1 <= by.paired_high:
        return f"{step} takes as long as the one that Alpa's ILP planned, as far as this run can tell"
    return (
        f"{step} takes {by.paired:.2f} of the time of the step that Alpa's ILP planned: "
        f"{abs(1 - by.paired):.0%} {'less' if by.paired < 1 else 'more'}"
    )


def _meaning(found: Comparison, machine: dict[str, object]) -> list[str]:
    names = [outcome.method for outcome in found.outcomes]
    width = max(map(len, names))
    said = [f"{name.ljust(width)}  {METHODS.get(name, '')}".rstrip() for name in names]
    effort = found.effort
    said += [
        "",
        "planning       seconds until the step is compiled" + _profiles(found),
        f"step, spread   median of {effort.rounds * effort.copies} steps, half the distance of the quartiles; "
        + ("in random order, until every host has its results" if "hosts" in machine else _IN_ONE_PROCESS),
        f"ratio to ILP   its time by that of {ILP} in the same rounds, median: below 1 is faster",
        _interval(effort),
        "memory         what one device needs, by the compiled program",
        "communicated   collectives of one step, and how many bytes one device puts into them",
    ]
    if found.of(CFP) is not None:
        said.append("predicted      what CFP's plan was thought to take, from the parts that it measured")
    said += on_virtual_devices(found, machine)
    return said


def _interval(effort: Effort) -> str:
    if effort.copies == 1:
        return "95% interval   over the rounds; what one copy of a program gains or loses by where it lies is not in it"
    return f"95% interval   over the {effort.copies} compiled copies of each program"


def on_virtual_devices(found: Compared, machine: dict[str, object]) -> list[str]:
    """What times mean where the devices are virtual."""
    if not _are_virtual(machine):
        return []
    return [
        f"The {found.case.num_devices} devices are virtual and share {machine['cores']} cores: times compare "
        "programs here, and say nothing about other machines."
    ]


def _profiles(found: Comparison) -> str:
    if found.profiled is None:
        return ""
    of = f"; CFP measured {found.profiled} programs for it"
    return f"{of}, beside {found.known} in its database from before" if found.known else of
