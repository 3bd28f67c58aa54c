"""A comparison on a target as text for a terminal, and as a value for JSON: takes a case and its rows.

Invariants: each number is explained below the table; whatever is not known of a method is said in words, and costs no
other row.
"""

import textwrap
from collections.abc import Sequence
from typing import Any

from alpa_cfp import quantities, target
from alpa_cfp_bench.case import CFP, ILP, METHODS, PROPAGATION
from alpa_cfp_bench.targets import comparison
from alpa_cfp_bench.targets.case import TargetCase
from alpa_cfp_bench.targets.comparison import Limits
from alpa_cfp_bench.targets.rankings import TIE, Row, rankings, steps_of
from alpa_cfp_bench.text import filled, fitting, wrapped

# The methods that can be compared on a target, by the names that the command line has for them.
NAMES = {
    CFP: comparison.CFP,
    ILP: comparison.ILP,
    "data-parallel": "data parallel",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "megatron": comparison.MEGATRON,
    PROPAGATION: comparison.PROPAGATION,
}
# Those that are not as on devices.
_MEANING = {
    CFP: "this project: compiles parts of the step for the target, and searches for the fastest plan",
    "data-parallel": "each device has all parameters and a part of the batch",
    "zero2": "data parallel, with the optimizer's state split over the devices",
    "zero3": "data parallel, with parameters split too",
    "megatron": "by hand: layers split over all devices, as Megatron-LM does",
}
_HEADER = ("method", "step", "to the best", "MFU", "computing", "communicating", "hidden", "memory", "planning")
FORMAT = 1
# Characters of a reason that are shown.
_REASON = 240


def named(row: Row) -> Row:
    """A row with the name of its method as the command line has it."""
    method = row["method"]
    if method in NAMES.values():
        return row | {"method": next(name for name, own in NAMES.items() if own == method)}
    # "Megatron along axis 1, data parallel"
    axis = method.partition(" along axis ")[2].partition(",")[0]
    return row | {"method": f"megatron-axis-{axis}"}


def lines(case: TargetCase, rows: Sequence[Row], limits: Limits, compiler: str, width: int | None = None) -> list[str]:
    """Return the whole report: the case, a row for each method, the rankings, and what the numbers mean.

    Args:
        case: What was planned.
        rows: What came out, by `named`.
        limits: What was given.
        compiler: The target's compiler, with its version.
        width: Of the terminal, which no line exceeds if it can be; None for lines as long as they are.
    """
    table = [list(_HEADER), *(_cells(row, rows) for row in rows)]
    said = [*_reasons(rows), *_alike(rows), f"order: {rankings(rows)}"]
    return [
        *wrapped(_head(case, rows, compiler), width),
        "",
        *fitting(filled(table), width),
        "",
        *wrapped(said, width),
        "",
        *wrapped(_meaning(case, rows, limits), width),
    ]


def to_content(case: TargetCase, rows: Sequence[Row], limits: Limits, compiler: str, command: str) -> dict[str, Any]:
    """Return the rows with the case and the command; times in seconds, sizes in bytes."""
    return {
        "format": FORMAT,
        "command": command,
        "target": target(case.target).name,
        "compiler": compiler,
        "mesh": quantities.shape(case.mesh),
        "memory_budget_bytes": limits.budget_bytes(case),
        "methods": list(rows),
    }


def _head(case: TargetCase, rows: Sequence[Row], compiler: str) -> list[str]:
    model = f"{case.suite} {case.name}".rstrip()
    parameters = next((f"{row['parameters']:,} parameters, " for row in rows if "parameters" in row), "")
    samples = quantities.plural(case.model.samples, "sample")
    where = f"{target(case.target).name}, {quantities.a_mesh(case.mesh)}"
    return [
        f"A training step of {model} ({parameters}{samples}) for {where}",
        f"compiled by {compiler}, its time modelled; nothing has run",
    ]


def _cells(row: Row, rows: Sequence[Row]) -> list[str]:
    planning = f"{row['planning_s']:.1f} s" if "planning_s" in row else ""
    if "step_s" not in row:
        return [row["method"], "none", *[""] * 6, planning]
    best_s = min(steps_of(rows).values(), default=None)
    is_ranked = row["fits"] and best_s is not None
    return [
        row["method"],
        quantities.time(row["step_s"]),
        f"{row['step_s'] / best_s:.2f}" if is_ranked else "does not fit",
        f"{row['mfu']:.1%}",
        *(quantities.time(row[name]) for name in ("computing_s", "communicating_s", "hidden_s")),
        quantities.size(row["memory_bytes"]),
        planning,
    ]


def _reasons(rows: Sequence[Row]) -> list[str]:
    """A line for each method without a step."""
    return [
        f"{row['method']} has no step: {textwrap.shorten(row['failure'], _REASON, placeholder=' ...')}"
        for row in rows
        if "step_s" not in row
    ]


def _alike(rows: Sequence[Row]) -> list[str]:
    """A line for each method whose program another one has, too."""
    first: dict[str, str] = {}
    said = []
    for row in rows:
        if "step_s" in row and row.get("program"):
            other = first.setdefault(row["program"], row["method"])
            if other != row["method"]:
                said.append(f"{row['method']} has the same program as {other}")
    return said


def _meaning(case: TargetCase, rows: Sequence[Row], limits: Limits) -> list[str]:
    names = [row["method"] for row in rows]
    width = max(map(len, (*names, *_HEADER)))
    says = [(name, _MEANING.get(name, METHODS.get(name, ""))) for name in names]
    said = [f"{name.ljust(width)}  {words or _of_axis(name)}" for name, words in says]
    budget = quantities.size(limits.budget_bytes(case))
    notes = {
        "step": "modelled from the compiled schedule by published figures of the chip and its links (docs/targets.md)",
        "to the best": f"the step by that of the fastest method that fits into {budget}",
        "MFU": f"the contractions of the step, counted once, by the {case.products_in} peak of all devices",
        "computing": "of one device; communicating, and what of it is hidden behind computing, too",
        "memory": "what one device needs, by the compiled program",
        "planning": "seconds of planning and partitioning"
        + (", of cfp with all that it compiled; its database may have known some of it" if CFP in names else ""),
        "order": f"of what fits; ~ is within {TIE:.0%}. Scenarios: {_SCENARIOS}",
    }
    return [*said, "", *(f"{name.ljust(width)}  {words}" for name, words in notes.items())]


_SCENARIOS = "communication, or computation, 25% faster or slower than modelled"


def _of_axis(name: str) -> str:
    return f"layers split along axis {name.rpartition('-')[2]} of the mesh, data parallel along the other"


def is_modelled(rows: Sequence[Row]) -> bool:
    """Whether a method has a step."""
    return any("step_s" in row for row in rows)
