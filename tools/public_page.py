"""Writes the table of public programs in docs/compatibility.md.

Takes a file of `public_programs.py`; gives back the page with the text between `<!-- public programs: begin -->` and
`<!-- public programs: end -->` made anew. Invariants: nothing outside of the markers changes; each outcome is in
exactly one row, whatever became of it; times stand there only if the plan's costs were measured.

    python tools/public_page.py docs/compatibility.md results.json
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

NAME = "public programs"
_METHODS = {"autoshard": "`autoshard`", "alpa-cfp": "`CFPShardParallel`", "alpa-ilp": "`ShardParallel`"}


def section(outcomes: Sequence[dict[str, Any]], repositories: dict[str, str]) -> str:
    """The table, a row for each outcome, and the medians below it.

    Args:
        outcomes: As `public_programs.py` writes them.
        repositories: "owner/name" of each program.
    """
    lines = [
        "| program | commit | mesh | through | two steps of `jax.jit` | planning | by a compile "
        "| step by data parallelism |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        program = f"`{outcome['program']}` ({repositories[outcome['program']]})"
        cells = [
            program,
            f"`{outcome['commit'][:8]}`",
            _mesh(outcome["mesh"]),
            _METHODS[outcome["method"]],
            _equality(outcome),
        ]
        lines.append(f"| {' | '.join([*cells, *_times(outcome)])} |")
    return "\n".join([*lines, "", _medians(outcomes)]).rstrip()


def _mesh(shape: str) -> str:
    """The mesh of "2x4": "(2, 4)"."""
    return f"({shape.replace('x', ', ')}{',' if 'x' not in shape else ''})"


def _equality(outcome: dict[str, Any]) -> str:
    status, reason = outcome["status"], outcome["reason"].replace("|", "\\|")
    if status in ("equal", "differs"):
        words = f"loss {outcome['loss_deviation']:.0e}, state {outcome['state_deviation']:.0e}"
        words += f" (rounding: {outcome['control_deviation']:.0e})"
        return f"equal: {words}" if status == "equal" else f"**differs** in {reason}: {words}"
    if status == "ran":
        return "runs; its random numbers are Alpa's"
    return f"**{status.replace('_', ' ')}** ({outcome['phase']}): {reason}"


def _times(outcome: dict[str, Any]) -> tuple[str, str, str]:
    if outcome["costs"] != "measure":
        return "", "", ""
    planning, compiling, ratio = (outcome[name] for name in ("planning_s", "jit_s", "step_ratio"))
    return (
        "" if planning is None else f"{planning:.0f} s",
        "" if planning is None else f"{planning / compiling:.1f}",
        "" if ratio is None else f"{ratio:.2f}",
    )


def _medians(outcomes: Sequence[dict[str, Any]]) -> str:
    measured = [outcome for outcome in outcomes if outcome["costs"] == "measure" and outcome["step_ratio"] is not None]
    if not measured:
        return ""
    by_compile = [outcome["planning_s"] / outcome["jit_s"] for outcome in measured]
    of_mesh = {outcome["mesh"]: list[float]() for outcome in measured}
    for outcome, own in zip(measured, by_compile, strict=True):
        of_mesh[outcome["mesh"]].append(own)
    meshes = ", ".join(f"{median(own):.1f} on {_mesh(mesh)}" for mesh, own in of_mesh.items())
    ratios = [outcome["step_ratio"] for outcome in measured]
    return (
        f"Of {len(measured)}: planning takes {median(by_compile):.1f} times a compile in the median ({meshes}), a step "
        f"{median(ratios):.2f} times that of data parallelism in the median and {max(ratios):.2f} times at most."
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="the page to rewrite")
    parser.add_argument("results", type=Path, help="the file of public_programs.py")
    options = parser.parse_args()
    from compatibility_page import with_section
    from public_steps.programs import PROGRAMS

    repositories = {name: program.repository for name, program in PROGRAMS.items()}
    outcomes = json.loads(options.results.read_text())["outcomes"]
    options.page.write_text(with_section(options.page.read_text(), NAME, section(outcomes, repositories)))


if __name__ == "__main__":
    main()
