"""Planning by this code and by another commit's, in pairs: seconds, and programs that are measured.

Takes the other commit, models and meshes; plans each training step by both in turn, with empty databases, and by this
code once more with one that holds what calibrates the mesh. Prints a line a case and writes `results/planning_pairs-*`.
Invariant: each planning is a process of its own, `alpa-cfp plan`.
"""

import argparse
import os
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from alpa_cfp_bench.workloads.sizes import RACED
from benchmarks import reports, runner
from benchmarks.code import ROOT
from benchmarks.runner import Benchmark, one_row

_HEADER = (
    "model", "mesh", "before, s", "now, s", "now, calibrated, s", "now / before", "calibrated / before",
    "programs before", "programs now", "programs now / before",
)  # fmt: skip
_TEXT = (
    "Planning a training step of the race, `alpa-cfp plan`, by the code of an earlier commit ({before}) and by this "
    "one, in turn, each with an empty database: the seconds that each says it took (those of this code with starting "
    "JAX, those of commits before 2026-11-26 without), and the programs that were measured, those that calibrate the "
    "mesh included. `now, calibrated`: with a database in which another program's planning has calibrated the mesh."
)
# The last commit that timed candidates together with their communication.
_BEFORE = "48eaf84"
# What calibrates a mesh is the same for all programs; this one is planned fastest.
_CALIBRATING = ("--model", "mlp", "--size", "tiny")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = runner.parser(__doc__, models=list(RACED), meshes=["2x4"])
    parser.add_argument("--before", default=_BEFORE, metavar="COMMIT", help=f"the other commit (default {_BEFORE})")
    options = parser.parse_args(argv)
    text = _TEXT.format(before=options.before)
    return Benchmark("planning_pairs", text, _HEADER, one_row(_cells), _verdict).run(_results(options), options)


def _results(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as directory, _checkout(options.before) as checkout:
        folder = Path(directory)
        for mesh in options.meshes:
            calibrated = folder / f"calibrated-{mesh}.sqlite"
            if _planned(ROOT, calibrated, mesh, *_CALIBRATING) is None:
                raise SystemExit(f"the mesh {mesh} cannot be calibrated")
            for model in options.models:
                databases = [folder / f"{model}-{mesh}-{kind}.sqlite" for kind in ("before", "now", "calibrated")]
                shutil.copy(calibrated, databases[2])
                known = _programs(calibrated)
                seconds = [
                    _planned(code, database, mesh, "--model", model)
                    for code, database in zip((checkout, ROOT, ROOT), databases, strict=True)
                ]
                before, now, more = map(_programs, databases)
                yield {
                    "model": model,
                    "mesh": mesh,
                    "commit_before": options.before,
                    "seconds": dict(zip(("before", "now", "calibrated"), seconds, strict=True)),
                    "programs": {"before": before, "now": now, "calibrated": more - known},
                    "load_average": os.getloadavg()[0],
                }


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """For the time of the context, the files of a commit."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "before"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(path), commit], cwd=ROOT, check=True)
        try:
            yield path
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(path)], cwd=ROOT, check=True)


def _planned(code: Path, database: Path, mesh: str, *program: str) -> float | None:
    """Plan a program by the code of a checkout; gives the seconds that it says it took, None if it makes no plan."""
    paths = os.pathsep.join(str(code / folder) for folder in ("", "patches", "benchmarks"))
    command = [sys.executable, "-m", "alpa_cfp.cli.main", "plan", *program, "--mesh", mesh, "--database", str(database)]
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(command, cwd=code, env=environment, check=False, capture_output=True, text=True)
    found = re.search(r"planned .* in ([\d.]+) s", done.stdout)
    if found is None:
        print(f"{code.name}: {' '.join(command)}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    return None if found is None else float(found[1])


def _programs(database: Path) -> int:
    """The number of programs whose profiles a database has."""
    if not database.exists():
        return 0
    with closing(sqlite3.connect(database)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM keys").fetchone()
    return count


def _ratio(result: reports.Row, of: str, kind: str) -> float | None:
    """By what it was before; None where there was no plan."""
    able = all(result["seconds"][each] is not None for each in ("before", kind))
    return result[of][kind] / result[of]["before"] if able else None


def _cells(result: dict[str, Any]) -> list[str]:
    seconds, programs = result["seconds"], result["programs"]
    return [
        result["model"],
        result["mesh"],
        *(_said(seconds[kind], 1) for kind in ("before", "now", "calibrated")),
        *(_said(_ratio(result, "seconds", kind), 2) for kind in ("now", "calibrated")),
        *(str(programs[kind]) for kind in ("before", "now")),
        _said(_ratio(result, "programs", "now"), 2),
    ]


def _said(value: float | None, digits: int) -> str:
    return "no plan" if value is None else f"{value:.{digits}f}"


def _verdict(rows: Sequence[reports.Row]) -> str:
    able = [row for row in rows if None not in row["seconds"].values()]
    if not able:
        return "No case has a plan by both."

    def said(of: str, kind: str) -> str:
        ratios = [ratio for row in able if (ratio := _ratio(row, of, kind)) is not None]
        in_all = sum(row[of][kind] for row in able) / sum(row[of]["before"] for row in able)
        return f"{statistics.median(ratios):.2f} in the median, {in_all:.2f} of all together, {max(ratios):.2f} at most"

    return (
        f"By those of the earlier commit, {len(able)} plannings that both can make: seconds {said('seconds', 'now')}; "
        f"with a calibrated mesh {said('seconds', 'calibrated')}; programs {said('programs', 'now')}."
    )


if __name__ == "__main__":
    sys.exit(main())
