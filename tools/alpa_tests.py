"""Runs Alpa's own tests against the alpa that is installed here, each in a process of its own with a time limit.

Takes a checkout of Alpa's repository (its folder `tests` is read, its folder `alpa` is not) and gives back one JSON
file with what became of each test. Two such files, of two versions of JAX, make the table of docs/compatibility.md
(`compatibility_page.py`).

    git clone --branch v0.2.3 https://github.com/alpa-projects/alpa
    python tools/alpa_tests.py alpa --output results.json

    python tools/alpa_tests.py alpa --output results.json --ray 1

The file is written after each test, and a run with the same file goes on where the last one ended. The second command
runs those tests again that ask for a Ray cluster, on one that it starts, of one node. Its devices count as GPUs where a
test asks how many there are.

Invariants: no Ray cluster is attached to that was not started here, and without `--ray` a test that asks for one ends
there as "needs_ray"; nothing is written into the checkout, since each test runs in an empty folder; a test's outcome is
what its process said, and a process that says nothing has crashed.
"""

import argparse
import ast
import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import traceback
import unittest
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

log = logging.getLogger("alpa_tests")

FOLDERS = ("shard_parallel", "pipeline_parallel", "util", "runtime")
NUM_DEVICES = 4  # Alpa's tests/README.md asks for a machine of at least 4.
_CLUSTER_DEVICES = "ALPA_TESTS_CLUSTER_DEVICES"
# What becomes of a test without a cluster that it needs; a file that counts GPUs when it is imported is for one, too.
WITHOUT_RAY = ("needs_ray", "not_loaded")


@dataclass(frozen=True)
class Outcome:
    """The result of one test.

    Attributes:
        test: "shard_parallel/test_mlp.py::AutoShardingMLPTest::test_weight_init".
        status: "passed", "failed", "skipped" (by Alpa), "needs_ray", "not_loaded" (its file cannot be imported),
            "crashed" or "timed_out".
        reason: the exception's class and the first line of what it says; empty if it passed.
        where: the innermost line of alpa, or of the test, that the exception passed: "alpa/util.py:123".
    """

    test: str
    status: str
    reason: str = ""
    where: str = ""


class NeedsRayError(Exception):
    """The test asks for a Ray cluster."""


def find_tests(tests: Path, folders: Sequence[str]) -> list[str]:
    """The tests in the files `test_*.py` of `folders`, by reading these files and not by importing them."""
    found = []
    for folder in folders:
        for file in sorted((tests / folder).glob("test_*.py")):
            for cls in ast.parse(file.read_text()).body:
                if isinstance(cls, ast.ClassDef):
                    names = [item.name for item in cls.body if isinstance(item, ast.FunctionDef)]
                    found += [f"{folder}/{file.name}::{cls.name}::{name}" for name in names if name.startswith("test")]
    return found


def run_in_own_process(
    test: str, tests: Path, num_devices: int, time_limit_s: float, ray_address: str | None
) -> Outcome:
    """Run one test in a new process, in an empty folder from which only Alpa's tests can be imported."""
    environment = dict(os.environ)
    environment.pop("RAY_ADDRESS", None)
    if ray_address is not None:
        environment["RAY_ADDRESS"] = ray_address
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={num_devices}"
    environment.setdefault("JAX_PLATFORMS", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        # A link, because the checkout has another alpa beside its tests.
        (Path(folder) / "tests").symlink_to(tests.resolve(), target_is_directory=True)
        result = Path(folder) / "result.json"
        command = [sys.executable, str(Path(__file__).resolve()), "--one", test, "--output", str(result)]
        try:
            process = subprocess.run(
                command, cwd=folder, env=environment, timeout=time_limit_s, capture_output=True, text=True, check=False
            )
        except subprocess.TimeoutExpired:
            return Outcome(test, "timed_out", f"did not end within {time_limit_s:.0f} s")
        if not result.exists():
            last = (process.stderr.strip().splitlines() or [""])[-1]
            return Outcome(test, "crashed", f"exit status {process.returncode}: {last[:200]}")
        return Outcome(**json.loads(result.read_text()))


def run_here(test: str) -> Outcome:
    """Run one test in this process, of which the current folder holds Alpa's folder `tests`."""
    sys.path.insert(0, os.getcwd())
    file, cls, name = test.split("::")
    module = "tests." + file.removesuffix(".py").replace("/", ".")
    # Some tests take a name from JAX before they import alpa, with which removed names come back.
    import alpa  # noqa: F401

    if "RAY_ADDRESS" in os.environ:
        _count_devices_as_gpus(int(os.environ[_CLUSTER_DEVICES]))
    else:
        _refuse_ray()
    try:
        __import__(module)
    except BaseException as error:  # noqa: BLE001 - whatever a file does when it is imported is the outcome
        return _outcome(test, "not_loaded", error)
    if "RAY_ADDRESS" not in os.environ:
        _refuse_ray()
    case = getattr(sys.modules[module], cls)(name)
    result = _Result()
    case.run(result)
    if result.skipped:
        return Outcome(test, "skipped", result.skipped[0][1])
    if result.error is None:
        return Outcome(test, "passed")
    return _outcome(test, "needs_ray" if isinstance(result.error, NeedsRayError) else "failed", result.error)


class _Result(unittest.TestResult):
    """Keeps the first exception itself, of which unittest keeps the text."""

    error: BaseException | None = None

    def addError(self, test: Any, err: Any) -> None:
        self.error = self.error or err[1]

    addFailure = addError


def _refuse_ray() -> None:
    """Let alpa.init("ray"), and ray.init if something has imported Ray, end the test."""
    import alpa.api

    original: Callable[..., Any] = alpa.api.init_global_cluster

    def init_global_cluster(cluster: str, *args: Any) -> Any:
        if cluster != "local":
            _needs_ray()
        return original(cluster, *args)

    def _needs_ray(*args: Any, **options: Any) -> NoReturn:
        raise NeedsRayError("needs a Ray cluster")

    alpa.api.init_global_cluster = init_global_cluster
    if "ray" in sys.modules:
        sys.modules["ray"].init = _needs_ray  # type: ignore[attr-defined]


def _count_devices_as_gpus(num_devices: int) -> None:
    """Let a file that asks for the number of GPUs while it is imported have the cluster's devices; JAX raises there."""
    import jax

    def counting(original: Callable[..., int]) -> Callable[..., int]:
        def count(backend: str | None = None) -> int:
            return num_devices if backend == "gpu" and jax.default_backend() == "cpu" else original(backend)

        return count

    jax.device_count = counting(jax.device_count)
    jax.local_device_count = counting(jax.local_device_count)


@contextlib.contextmanager
def ray_cluster(num_nodes: int, num_devices: int) -> Iterator[str | None]:
    """The address of a Ray cluster of this machine, whose nodes have virtual CPU devices; None for one of no nodes."""
    if not num_nodes:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="alpa-ray-", ignore_cleanup_errors=True) as folder:
        (Path(folder) / "ray").mkdir()
        os.environ |= {
            "RAY_TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            _CLUSTER_DEVICES: str(num_nodes * num_devices),
        }
        from ray.cluster_utils import Cluster

        from alpa_on_jax.ray_mesh.cluster.hosts import CPU_DEVICE

        node = {
            "num_cpus": num_devices,
            "num_gpus": 0,
            "resources": {CPU_DEVICE: num_devices},
            "object_store_memory": 100 * 2**20,
            "include_dashboard": False,
        }
        cluster = Cluster(initialize_head=True, head_node_args=node)
        try:
            for _ in range(num_nodes - 1):
                cluster.add_node(**node)
            yield cluster.address
        finally:
            cluster.shutdown()


def _outcome(test: str, status: str, error: BaseException) -> Outcome:
    lines = str(error).strip().splitlines() or [""]
    reason = f"{type(error).__name__}: {lines[0][:200]}".rstrip(": ")
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        parts = Path(frame.filename).parts
        for package in ("alpa_on_jax", "alpa", "tests"):
            if package in parts:
                where = f"{'/'.join(parts[parts.index(package) :])}:{frame.lineno}"
                break
    return Outcome(test, status, reason, where)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, nargs="?", help="a checkout of Alpa's repository, at v0.2.3")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--folders", nargs="+", default=FOLDERS, help="folders below tests/")
    parser.add_argument("--only", nargs="+", default=[""], help="only tests of which the name contains one of these")
    parser.add_argument("--devices", type=int, default=NUM_DEVICES, help="virtual CPU devices for each test, or node")
    parser.add_argument("--ray", type=int, default=0, metavar="NODES", help="start a Ray cluster of so many nodes")
    parser.add_argument("--time-limit", type=float, default=300, help="seconds for each test")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        options.output.write_text(json.dumps(asdict(run_here(options.one))))
        return
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    tests = options.checkout / "tests" if options.checkout else Path()
    if options.checkout is None or not tests.is_dir():
        parser.error(f"{options.checkout} is no checkout of Alpa's repository: it has no folder tests")
    import jax

    report = {"jax": jax.__version__, "devices": options.devices}
    outcomes = _finished(options.output, report)
    left = [test for test in find_tests(tests, options.folders) if any(part in test for part in options.only)]
    again = WITHOUT_RAY if options.ray else ()
    left = [test for test in left if test not in outcomes or outcomes[test]["status"] in again]
    with ray_cluster(options.ray if left else 0, options.devices) as address:
        for test in left:
            outcome = run_in_own_process(test, tests, options.devices, options.time_limit, address)
            log.info("%-10s %s %s %s", outcome.status, test, outcome.reason, outcome.where)
            outcomes[test] = asdict(outcome)
            options.output.write_text(json.dumps(report | {"outcomes": list(outcomes.values())}, indent=1) + "\n")


def _finished(path: Path, report: dict[str, Any]) -> dict[str, Any]:
    """The outcomes of an earlier run with the same JAX and devices, by test; none where there is no file."""
    if not path.exists():
        return {}
    earlier = json.loads(path.read_text())
    outcomes = {outcome["test"]: outcome for outcome in earlier.pop("outcomes")}
    if earlier != report:
        raise SystemExit(f"{path} has results of {earlier}, not of {report}: name another file, or remove it")
    log.info("%d tests have run before: %s", len(outcomes), path)
    return outcomes


if __name__ == "__main__":
    main()
