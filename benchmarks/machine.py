"""The files that results are kept in.

Takes what a benchmark measured; adds it to a JSON file with every run, and writes a markdown page of all of them
(`reports.py`), both in `benchmarks/results/`. Invariant: no result is written without the machine, its load, the
versions, the command, the commit and the date.
"""

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from alpa_cfp_bench.machine import describe
from benchmarks import ages, code
from benchmarks.reports import Row, page_of, read, rows_of, with_run

RESULTS = Path(__file__).resolve().parent / "results"
# What a process writes is one run, of which it may write more and more.
_RUN = time.time_ns()


def write(
    name: str,
    text: str,
    rows: Sequence[Row],
    table: Sequence[Sequence[str]],
    verdict: Callable[[Sequence[Row]], str] | None = None,
) -> Path:
    """Add a run to `results/<name>-jax<version>.json`, write its page, and return the latter's path.

    Args:
        name: The benchmark.
        text: What was compared with what, as a paragraph.
        rows: Everything that was measured.
        table: The header and the rows of the markdown table.
        verdict: What the rows of all runs of this code amount to, in a paragraph.
    """
    stem = f"{name}-jax{importlib.metadata.version('jax')}"
    path = RESULTS / f"{stem}.json"
    RESULTS.mkdir(parents=True, exist_ok=True)
    report = read(path) if path.exists() else {"benchmark": name, "codes": []}
    run = {
        "run": _RUN,
        "command": " ".join(["python", "-m", _module(), *map(shown, sys.argv[1:])]),
        "commit": code.commit(),
        "machine": describe(),
        "results": list(rows),
        "table": [list(cells) for cells in table],
    }
    report["codes"] = with_run(report["codes"], code.digest(name), text, run)
    newest = report["codes"][-1]
    newest["verdict"] = "" if verdict is None else verdict(rows_of(newest))
    path.write_text(json.dumps(report, indent=1) + "\n")
    page = RESULTS / f"{stem}.md"
    page.write_text("\n".join(page_of(report)) + "\n")
    ages.write(RESULTS)
    return page


def shown(argument: str) -> str:
    """An argument of a command as results name it: a path of one machine by its last part."""
    option, equals, value = argument.rpartition("=")
    return option + equals + (Path(value).name if Path(value).is_absolute() else value)


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None else Path(sys.argv[0]).stem
