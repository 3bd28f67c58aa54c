"""The probes, which run in separate processes: `python -m alpa_cfp.doctor.probes NAME`.

A probe prints a line of JSON for each subject as soon as it is known, so that a later crash loses nothing. Invariants:
whatever an import or a call raises becomes such a line; nothing here attaches to a cluster, takes a GPU's memory or
leaves a file.
"""

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

# Marks the lines for the doctor, because libraries print too.
MARK = "alpa-cfp-probe:"


def main(name: str) -> None:
    """Runs a probe by its name."""
    PROBES[name]()


def answer(subject: str, find: Callable[[], dict[str, Any]]) -> None:
    """Prints the result of `find` for a subject, or the error that it raises."""
    try:
        found = find()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  (a broken package may raise anything, SystemExit too)
        found = {"error": _message(error)}
    sys.stdout.write(f"{MARK}{json.dumps({subject: found})}\n")
    sys.stdout.flush()


def _message(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _alpa() -> None:
    # Nothing has imported alpa_on_jax yet, except the startup file.
    hooked = "alpa_on_jax._startup" in sys.modules
    answer("hook", lambda: {"runs": hooked})
    answer("alpa", lambda: {"version": importlib.import_module("alpa").__version__})


def _jax() -> None:
    answer("numpy", lambda: {"version": importlib.import_module("numpy").__version__})
    answer("jax", lambda: {"version": importlib.import_module("jax").__version__})
    for name in ("flax", "optax"):
        answer(name, lambda name=name: {"version": importlib.import_module(name).__version__})
    # Last, because XLA ends the process for an unknown flag.
    answer("devices", _devices)


def _devices() -> dict[str, Any]:
    import jax

    return {
        "devices": [
            {"platform": device.platform, "kind": device.device_kind, "memory_bytes": _memory_bytes(device)}
            for device in jax.devices()
        ]
    }


def _memory_bytes(device: Any) -> int | None:
    """The limit of a device's allocator; None if JAX does not report it, as on a CPU."""
    statistics = device.memory_stats()
    return statistics.get("bytes_limit") if statistics else None


def _solver() -> None:
    def solve() -> dict[str, Any]:
        import pulp

        if "PULP_CBC_CMD" not in pulp.listSolvers(onlyAvailable=True):  # what alpa asks for
            return {"version": pulp.__version__, "runs": False}
        problem = pulp.LpProblem("smallest", pulp.LpMinimize)
        choice = [pulp.LpVariable(f"x{number}", cat="Binary") for number in range(2)]
        problem += 3 * choice[0] + 2 * choice[1]
        problem += choice[0] + choice[1] == 1
        problem.solve(pulp.PULP_CBC_CMD(mip=True, msg=False, threads=1))
        return {"version": pulp.__version__, "runs": True, "right": pulp.value(problem.objective) == 2}

    answer("solver", solve)


def _ray() -> None:
    answer("ray", lambda: {"version": importlib.import_module("ray").__version__})


def _cluster() -> None:
    """Starts a Ray cluster of one CPU, runs a task on it, and stops it."""

    def run() -> dict[str, Any]:
        import ray

        os.environ.pop("RAY_ADDRESS", None)
        # A separate folder, because Ray's usual one holds the address of the newest cluster, to which others attach.
        # Its name is short, because paths of sockets are limited.
        with tempfile.TemporaryDirectory(prefix="cfp") as folder:
            ray.init(
                address="local",
                num_cpus=1,
                include_dashboard=False,
                log_to_driver=False,
                object_store_memory=100 * 2**20,
                _temp_dir=folder,
            )
            try:
                result = ray.get(ray.remote(_one_more).remote(41), timeout=60)
            finally:
                ray.shutdown()
        return {"right": result == 42}

    answer("cluster", run)


def _one_more(number: int) -> int:
    return number + 1


PROBES: dict[str, Callable[[], None]] = {
    "alpa": _alpa,
    "jax": _jax,
    "solver": _solver,
    "ray": _ray,
    "cluster": _cluster,
}

if __name__ == "__main__":
    main(sys.argv[1])
