"""The results of a benchmark: runs by code, and the page of all of them.

Takes reports as they lie in the JSON files of `benchmarks/results/`: {"benchmark", "codes": [{"code", "text",
"verdict", "runs": [{"run", "command", "commit", "machine", "results", "table"}]}]}, the code that was measured first
first. Invariants: no run is taken away by a later one; the page shows the runs of one code together, the newest code
first; nothing here imports jax.
"""

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
# So many commands of one program are named one by one.
_MANY = 3
_SHARED_CORES = (
    "The {devices} devices are virtual and share the {cores} cores: times compare programs on this machine "
    "and say nothing about machines with that many devices."
)


def read(path: Path) -> dict[str, Any]:
    """The report in a JSON file."""
    return json.loads(path.read_text())


def with_run(codes: Sequence[dict[str, Any]], digest: str, text: str, run: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs by code, oldest first, with one more, or with more of the one that is there."""
    same = next((each for each in codes if each["code"] == digest), {"code": digest, "runs": []})
    runs = [each for each in same["runs"] if each["run"] != run["run"]]
    return [*(each for each in codes if each is not same), same | {"text": text, "runs": [*runs, run]}]


def rows_of(of_code: dict[str, Any]) -> list[Row]:
    """The rows of all runs of one version of the code, each with the number of its run."""
    return [{**row, "run": number} for number, run in enumerate(of_code["runs"], 1) for row in run["results"]]


def newest_of_cases(report: dict[str, Any], keys: Sequence[str]) -> list[list[tuple[Row, dict[str, Any]]]]:
    """The rows of each case, in the last code that it was measured with, each with the run that it is of.

    Args:
        report: All that was measured.
        keys: The fields that say which case a row is of.
    """
    cases: dict[tuple[Any, ...], list[tuple[Row, dict[str, Any]]]] = {}
    for of_code in report["codes"]:
        of_newer: dict[tuple[Any, ...], list[tuple[Row, dict[str, Any]]]] = {}
        for run in of_code["runs"]:
            for row in run["results"]:
                of_newer.setdefault(tuple(row.get(key) for key in keys), []).append((row, run))
        cases |= of_newer
    return list(cases.values())


def commands_of(runs: Sequence[dict[str, Any]]) -> list[str]:
    """The commands of some runs, each once; many of one program, which measured a case each, as that program."""
    commands = list(dict.fromkeys(run["command"] for run in runs))
    programs: dict[str, list[str]] = {}
    for command in commands:
        programs.setdefault(" ".join(command.split()[:3]), []).append(command)
    return [each for program, own in programs.items() for each in (own if len(own) <= _MANY else [program])]


def medians(rows: Sequence[Row], keys: Sequence[str], value: Callable[[Any], float]) -> list[float]:
    """A number of each case, the median of those of its runs.

    Args:
        rows: What was measured.
        keys: The fields that say which case a row is of.
        value: Gives the number of a row.
    """
    cases: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        cases.setdefault(tuple(row[key] for key in keys), []).append(value(row))
    return list(map(statistics.median, cases.values()))


def page_of(report: dict[str, Any]) -> list[str]:
    """The lines of the page: all runs, those of the newest code first."""
    *earlier, newest = report["codes"]
    lines = [f"# {report['benchmark']}", "", newest["text"], "", *_section(newest)]
    for each in reversed(earlier):
        commits = ", ".join(dict.fromkeys(run["commit"] or "a commit that is not known" for run in each["runs"]))
        lines += ["", f"## Of earlier code ({commits})", ""]
        if each["text"] != newest["text"]:
            lines += [each["text"], ""]
        lines += _section(each)
    return lines


def markdown_table(table: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a markdown table; the first row is its header."""
    header, *rows = table
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]


def _section(of_code: dict[str, Any]) -> list[str]:
    """The section of one version of the code: the verdict, the runs, and one table for runs with equal columns."""
    runs = of_code["runs"]
    lines = [of_code["verdict"], ""] if of_code.get("verdict") else []
    if len(runs) == 1:
        lines += [*_about(runs[0]), "", *markdown_table(runs[0]["table"])]
        return lines
    tables: dict[tuple[str, ...], list[list[str]]] = {}
    for number, run in enumerate(runs, start=1):
        lines += [f"Run {number}:", *_about(run), ""]
        header, *rows = run["table"]
        tables.setdefault(tuple(header), []).extend([*cells, str(number)] for cells in rows)
    for header, rows in tables.items():
        lines += [*markdown_table([[*header, "run"], *rows]), ""]
    return lines[:-1]


def _about(run: dict[str, Any]) -> list[str]:
    machine = run["machine"]
    versions = ", ".join(f"{package} {version}" for package, version in machine["versions"].items())
    lines = [
        f"`{run['command']}`, {machine['date']}, commit {run['commit'] or 'not known'}. {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['devices']}; Python {machine['python']}, {versions}. Load average at the "
        f"end: {machine['load_average']}."
    ]
    count, _, kind = machine["devices"].partition(" x ")
    if kind == "cpu":
        lines.append(_SHARED_CORES.format(devices=count, cores=machine["cores"]))
    return lines
