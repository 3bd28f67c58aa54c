"""The files that results are kept in.

Takes what a benchmark measured, gives back a JSON file with everything and a markdown table beside it, both in
`benchmarks/results/`. Invariant: no result is written without the machine, the versions, the command and the date.
"""

import importlib.metadata
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from alpa_cfp.bench.machine import describe

RESULTS = Path(__file__).resolve().parent / "results"
_SHARED_CORES = (
    "The {devices} devices are virtual and share the {cores} cores: times compare programs on this machine "
    "and say nothing about machines with that many devices."
)


def write(name: str, text: str, rows: Sequence[Mapping[str, Any]], table: Sequence[Sequence[str]]) -> Path:
    """Write `results/<name>-jax<version>.json` and `.md`, and return the latter.

    Args:
        name: The benchmark.
        text: What was compared with what, as a paragraph.
        rows: Everything that was measured.
        table: The header and the rows of the markdown table.
    """
    machine = describe()
    command = f"python -m {_module()} {' '.join(sys.argv[1:])}".strip()
    stem = f"{name}-jax{machine['versions']['jax']}"
    RESULTS.mkdir(parents=True, exist_ok=True)
    report = {"benchmark": name, "command": command, "machine": machine, "results": list(rows)}
    (RESULTS / f"{stem}.json").write_text(json.dumps(report, indent=1) + "\n")
    versions = ", ".join(f"{package} {version}" for package, version in machine["versions"].items())
    lines = [
        f"# {name}",
        "",
        text,
        "",
        f"`{command}`, {machine['date']}. {machine['cpu']}, {machine['cores']} cores, {machine['devices']}; Python "
        f"{machine['python']}, {versions}. Load average at the end: {machine['load_average']}.",
        "",
    ]
    if jax.default_backend() == "cpu":
        lines += [_SHARED_CORES.format(devices=len(jax.local_devices()), cores=machine["cores"]), ""]
    lines += markdown_table(table)
    path = RESULTS / f"{stem}.md"
    path.write_text("\n".join(lines) + "\n")
    return path


def earlier(name: str, keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the results file of this version of JAX that `rows` do not measure anew, each with its date.

    Args:
        name: The benchmark.
        keys: The fields that say what a row measures.
        rows: What is measured now.
    """
    path = RESULTS / f"{name}-jax{importlib.metadata.version('jax')}.json"
    if not path.exists():
        return []
    report = json.loads(path.read_text())
    new = {tuple(row[key] for key in keys) for row in rows}
    kept = [row for row in report["results"] if tuple(row[key] for key in keys) not in new]
    return [{"date": report["machine"]["date"]} | row for row in kept]


def markdown_table(table: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a markdown table; the first row is its header."""
    header, *rows = table
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None else Path(sys.argv[0]).stem
