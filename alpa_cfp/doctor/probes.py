"""What is looked at in processes of its own: `python -m alpa_cfp.doctor.probes NAME`.

Takes the name of a probe; prints what it finds, a line of JSON for each subject, as soon as it is known: a process that
crashes later has said what it knew. Invariant: whatever an import or a call raises is a line that says so. Nothing here
attaches to a cluster, takes a GPU's memory or writes a file that stays.
"""

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

# Libraries print as well; what is meant for the doctor begins like this.
MARK = "alpa-cfp-probe:"


def main(name: str) -> None:
    """Run a probe by its name."""
    PROBES[name]()


def answer(subject: str, find: Callable[[], dict[str, Any]]) -> None:
    """Print what `find` gives of a subject, or what it raises."""
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
    # Before anything of alpa_on_jax is imported: only the startup file can have done it by now.
    hooked = "alpa_on_jax._startup" in sys.modules
    answer("hook", lambda: {"runs": hooked})
    answer("alpa", lambda: {"version": importlib.import_module("alpa").__version__})


def _jax() -> None:
    answer("numpy", lambda: {"version": importlib.import_module("numpy").__version__})
    answer("jax", lambda: {"version": importlib.import_module("jax").__version__})
    for name in ("flax", "optax"):
        answer(name, lambda name=name: {"version": importlib.import_module(name).__version__})
    # The last: XLA ends the process for a flag that it does not know.
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
    """What a device's allocator may take; None where JAX does not say, as on a CPU."""
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


def _cupy() -> None:
    def version() -> dict[str, Any]:
        cupy = importlib.import_module("cupy")
        importlib.import_module("cupy.cuda.nccl").get_version()
        return {"version": cupy.__version__}

    answer("cupy", version)


def _cluster() -> None:
    """Start a Ray cluster of one CPU, run a task on it, and stop it."""

    def run() -> dict[str, Any]:
        import ray

        os.environ.pop("RAY_ADDRESS", None)
        # A folder of its own: Ray's usual one says where the newest cluster is, for others to attach to. Its name is
        # short, because sockets lie in it.
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
    "cupy": _cupy,
    "cluster": _cluster,
}

if __name__ == "__main__":
    main(sys.argv[1])
