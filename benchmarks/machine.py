"""Where and with what a result was measured, and the files that results are kept in.

Takes what a benchmark measured, gives back a JSON file with everything and a markdown table beside it, both in
`benchmarks/results/`. Invariant: no result is written without the machine, the versions, the command and the date.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

RESULTS = Path(__file__).resolve().parent / "results"
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "alpa")
_SHARED_CORES = (
    "The {devices} devices are virtual and share the {cores} cores: times compare programs on this machine "
    "and say nothing about machines with that many devices."
)


def describe() -> dict[str, Any]:
    """The machine, the versions and the time of now."""
    devices = jax.local_devices()
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


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


def markdown_table(table: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a markdown table; the first row is its header."""
    header, *rows = table
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None else Path(sys.argv[0]).stem


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # only Linux has it
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
