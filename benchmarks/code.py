"""Which code a result is of.

Takes the name of a benchmark; gives the commit, and a digest of the sources whose behaviour it measures. Invariant: two
results with one digest are of the same code, so that their median is the result of that code, whatever happened to the
rest of the repository between them.
"""

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_RUNTIME = Path("patches/alpa_on_jax")
_CORE = Path("alpa_cfp/spmd")
_PLANNER = Path("alpa_cfp")
_HARNESS = Path("benchmarks/alpa_cfp_bench")
# What only puts into words what was planned; and the compiler core, which counts for every benchmark.
_WORDS = frozenset({"cli", "doctor", "report", "spmd"})
# Benchmarks that the planner has no part in, by how their names begin.
_WITHOUT_PLANNER = ("dispatch", "gradient_accumulation", "ilp_growth", "ray_faults", "ray_meshes", "transport")
# What belongs to a benchmark under a name of its own.
_PARTS = {
    "collective_models": ("collective_numbers",),
    "step_tables": ("step_numbers", "step_programs", "step_models"),
}
_DIGITS = 16


def digest(name: str) -> str:
    """Of the sources that benchmark `name` measures."""
    found = hashlib.sha256()
    for path in sorted(_sources(name)):
        found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:_DIGITS]


def commit() -> str | None:
    """The commit that is checked out, with "+" where files differ from it; None where there is no git to ask."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return head + "+" * bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _sources(name: str) -> Iterator[Path]:
    for folder in (_RUNTIME, _CORE, _HARNESS):
        yield from (ROOT / folder).rglob("*.py")
    own = [path for kind in ("*.py", "*.toml") for path in (ROOT / "benchmarks").glob(kind)]
    yield from (path for path in own if name.startswith(path.stem) or path.stem in _PARTS.get(name, ()))
    if not name.startswith(_WITHOUT_PLANNER):
        planner = ROOT / _PLANNER
        yield from (path for path in planner.rglob("*.py") if path.relative_to(planner).parts[0] not in _WORDS)
