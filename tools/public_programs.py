"""Runs steps of public repositories by `autoshard`, each on each mesh in a process of its own with a time limit.

Takes a folder with checkouts (`flax`, `EasyLM`, `nanodo`, `purejaxrl`, `diffrax`), at the commits that
`public_steps/programs.py` names; gives one JSON file with what became of each program on each mesh: whether two steps
equal those of `jax.jit`, what planning takes, and the step's time beside that of data parallelism. Such a file makes
the table of docs/compatibility.md (`public_page.py`).

    git clone https://github.com/google/flax checkouts/flax
    git -C checkouts/flax checkout 18f8f311
    pip install --target packages --no-deps -r tools/public_steps/packages.txt
    python tools/public_programs.py checkouts --packages packages --output results.json
    python tools/public_programs.py checkouts --packages packages --output results.json --only lm1b --mesh 2x4 --again

The file is written after each program, and a run with the same file goes on where the last one ended; `--again` runs
those again that are in it, and replaces them. Programs share one profile database, so all but the first one on a mesh
find the machine calibrated; `--calibrate` plans a small program on each mesh before.

Invariants: nothing is written into a checkout, and nothing of it is kept; sizes are tiny and data are drawn; packages
that only load data are replaced by nothing (`public_steps/absent.py`); an outcome is what its process said, and one
that says nothing more has crashed or ran out of time where its last word was.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from math import prod
from pathlib import Path
from typing import Any

from public_steps.programs import PROGRAMS

log = logging.getLogger("public_programs")

MESHES = ("8", "2x4", "2x2x2")
_KEY = ("program", "mesh", "method")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, help="a folder with the checkouts")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument(
        "--packages", type=Path, help="a folder with packages that the programs need beside the project's"
    )
    parser.add_argument("--only", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS), help="these programs")
    parser.add_argument("--mesh", nargs="+", default=list(MESHES), help="these meshes of virtual CPU devices")
    parser.add_argument("--method", nargs="+", choices=("autoshard", "alpa-cfp", "alpa-ilp"), default=["autoshard"])
    parser.add_argument("--costs", choices=("measure", "estimate"), default="measure", help="as in PlanOptions")
    parser.add_argument("--database", type=Path, help="the profile database that all share; beside OUTPUT if not given")
    parser.add_argument("--calibrate", action="store_true", help="calibrate the machine for each mesh before")
    parser.add_argument("--time-limit", type=float, default=1800, help="seconds for each program on each mesh")
    parser.add_argument("--timing", type=float, default=20, help="seconds for timing steps in pairs; 0 for none")
    parser.add_argument("--again", action="store_true", help="run what the file has again, and replace it")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        _run_here(options)
        return
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if options.database is None:
        options.database = options.output.with_suffix(".sqlite")
    outcomes = read(options.output)
    for mesh in options.mesh:
        if options.calibrate and options.costs == "measure":
            _calibrate(mesh, options)
        for name in options.only:
            for method in options.method:
                if (name, mesh, method) in outcomes and not options.again:
                    continue
                outcome = run_in_own_process(name, mesh, method, options)
                log.info("%-12s %-6s %-9s %s", name, mesh, method, summary(outcome))
                # Read again: another run may have written meanwhile.
                outcomes = read(options.output) | {(name, mesh, method): outcome}
                write(options.output, outcomes)


def read(path: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """The outcomes of a file by program, mesh and method; none where there is no file."""
    if not path.exists():
        return {}
    return {tuple(outcome[name] for name in _KEY): outcome for outcome in json.loads(path.read_text())["outcomes"]}


def write(path: Path, outcomes: dict[tuple[str, ...], dict[str, Any]]) -> None:
    """Write outcomes in the order of the programs and meshes."""
    order = list(PROGRAMS)
    ordered = sorted(
        outcomes.values(), key=lambda o: (order.index(o["program"]), len(o["mesh"]), o["mesh"], o["method"])
    )
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".json", delete=False) as file:
        file.write(json.dumps({"outcomes": ordered}, indent=1) + "\n")
    os.replace(file.name, path)


def summary(outcome: dict[str, Any]) -> str:
    """One line on an outcome."""
    words = [outcome["status"]]
    if outcome["status"] not in ("equal", "differs", "ran"):
        words.append(f"in {outcome['phase']}: {outcome['reason']} {outcome['where']}")
    for name, form in (
        ("jit_s", "jit {:.1f} s"),
        ("planning_s", "planning {:.1f} s"),
        ("loss_deviation", "loss {:.1e}"),
        ("state_deviation", "state {:.1e}"),
        ("control_deviation", "(control {:.1e})"),
        ("step_ratio", "step {:.2f}"),
    ):
        if outcome[name] is not None:
            words.append(form.format(outcome[name]))
    return ", ".join(words)


def run_in_own_process(name: str, mesh: str, method: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run a program in a new process in an empty folder; what it told last, where it does not end by itself."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        process = _process(name, mesh, method, result, options)
        try:
            _, errors = process.communicate(timeout=options.time_limit)
            ended = "crashed"
        except subprocess.TimeoutExpired:
            process.kill()
            _, errors = process.communicate()
            ended = "timed_out"
        if not result.exists():
            last = (errors.strip().splitlines() or [""])[-1]
            raise SystemExit(f"{name} on {mesh} did not start: {last}")
        outcome = json.loads(result.read_text())
    if ended == "timed_out" and outcome["phase"] != "done":
        late = f"did not end within {options.time_limit:.0f} s"
        return outcome | ({"reason": late} if outcome["status"] == "equal" else {"status": ended, "reason": late})
    if outcome["status"] == "crashed":
        last = (errors.strip().splitlines() or [""])[-1]
        return outcome | {"reason": f"exit status {process.returncode}: {last[:200]}"}
    log.debug("%s", errors)
    return outcome


def _process(name: str, mesh: str, method: str, result: Path, options: argparse.Namespace) -> subprocess.Popen[str]:
    environment = dict(os.environ) | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={prod(map(int, mesh.split('x')))}",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, str(Path(__file__).resolve()), str(options.checkouts.resolve()), "--one"]
    command += ["--output", str(result), "--only", name, "--mesh", mesh, "--method", method, "--costs", options.costs]
    command += ["--database", str(options.database.resolve()), "--timing", str(options.timing)]
    if options.packages:
        command += ["--packages", str(options.packages.resolve())]
    return subprocess.Popen(
        command, cwd=result.parent, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def _run_here(options: argparse.Namespace) -> None:
    """Run one program in this process, and write what it tells."""
    # After the project's own, so that what both have is the project's.
    if options.packages:
        sys.path.append(str(options.packages))
    if options.method != ["autoshard"]:
        import alpa  # noqa: F401 - before all else, as alpa's users import it

    from public_steps.running import Outcome, Run, as_json, run

    (name,), (mesh,), (method,) = options.only, options.mesh, options.method
    checkout = options.checkouts / PROGRAMS[name].folder

    def tell(outcome: Outcome) -> None:
        part = options.output.with_suffix(".part")
        part.write_text(json.dumps(as_json(outcome)))
        os.replace(part, options.output)

    what = Run(name, mesh, method, checkout, options.costs, options.database, options.timing)
    run(what, commit_of(checkout), tell)


def commit_of(checkout: Path) -> str:
    """The commit of a checkout, and a mark where its files were changed; "" where there is no git."""
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return process.stdout.strip()


def _calibrate(mesh: str, options: argparse.Namespace) -> None:
    """Plan a small program on a mesh in a process of its own, so that the database has the machine's rates."""
    code = (
        "import sys, jax, numpy as np\n"
        "from public_steps.running import mesh_of\n"
        "from alpa_cfp import PlanOptions, autoshard\n"
        "x = np.ones((64, 64), np.float32)\n"
        "option = PlanOptions(database=sys.argv[2], progress=False, refine=1, baselines=False)\n"
        "autoshard(lambda w, x: (x @ w).sum(), mesh_of(sys.argv[1], ('a', 'b', 'c')), x, x, option=option)\n"
    )
    environment = dict(os.environ) | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={prod(map(int, mesh.split('x')))}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-c", code, mesh, str(options.database.resolve())]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        log.warning("mesh %s is not calibrated: %s", mesh, (process.stderr.strip().splitlines() or [""])[-1])


if __name__ == "__main__":
    main()
