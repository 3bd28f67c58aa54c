"""How long it takes until the user knows of a host that is gone or hangs, and until a new mesh has taken a step.

Each fault is caused in a mesh of 2 x 4 virtual CPU devices with the limits that everybody has. Then a value is fetched,
which is how a user notices. Kept are the seconds until the error and until no process of the mesh is left, what the
error says, and the seconds from the next call of the same function to its value, a new mesh included.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import alpa
import numpy as np
from alpa.device_mesh import get_global_physical_mesh

from alpa_on_jax import errors
from benchmarks import runner
from benchmarks.ray_clusters import cluster

_TEXT = (
    "Seconds from the fault until the user has the error, until no process of the mesh is left after that, and from "
    "the next call of the function until its value is there, which includes a new mesh: median, and range."
)
_X = np.ones((16, 4), np.float32)
# Is given the step and the processes of the hosts; gives the step's result.
_Fault = Callable[[Callable[[], Any], Sequence[int]], Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = runner.parser(__doc__, times=5).parse_args(argv)
    results = []
    with cluster(4, 4):
        init: Any = alpa.init
        init(cluster="ray")
        try:
            for name, fault in _FAULTS.items():
                results.append({"fault": name, "runs": [_cause(fault) for _ in range(options.times)]})
                print(results[-1], flush=True)
        finally:
            alpa.shutdown()
    table = [["fault", "until the error", "until nothing is left", "next call"], *map(_row, results)]
    return runner.finish("ray_faults", _TEXT, results, table, options.no_results)


def _killed_in_a_step(step: Callable[[], Any], pids: Sequence[int]) -> Any:
    os.kill(pids[1], signal.SIGSTOP)
    result = step()
    time.sleep(0.5)  # the other host is in the step by now
    os.kill(pids[1], signal.SIGKILL)
    return result


def _signalled(number: signal.Signals) -> _Fault:
    def fault(step: Callable[[], Any], pids: Sequence[int]) -> Any:
        os.kill(pids[1], number)
        return step()

    return fault


_FAULTS: dict[str, _Fault] = {
    "killed in a step": _killed_in_a_step,
    "killed between steps": _signalled(signal.SIGKILL),
    "aborts": _signalled(signal.SIGABRT),
    "stopped": _signalled(signal.SIGSTOP),
}


def _cause(fault: _Fault) -> dict[str, Any]:
    """Cause a fault on a mesh that works, and go on."""
    import ray

    function = alpa.parallelize(
        lambda x: (x @ np.ones((4, 4), np.float32)).sum(0), batch_argnums=(0,), method=alpa.DataParallel()
    )
    expected = np.asarray(function(_X))
    mesh: Any = get_global_physical_mesh()
    pids = ray.get([worker.check_alive.remote() for worker in mesh.workers])
    start = time.perf_counter()
    try:
        np.asarray(fault(lambda: function(_X), pids))
        raise RuntimeError("the fault was not noticed")
    except errors.MeshLostError as error:
        message = str(error)
    known = time.perf_counter()
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.02)
    left = time.perf_counter()
    np.testing.assert_array_equal(np.asarray(function(_X)), expected)
    return {
        "message": message,
        "known_s": known - start,
        "left_s": left - known,
        "next_s": time.perf_counter() - left,
    }


def _row(result: dict[str, Any]) -> list[str]:
    cells = [result["fault"]]
    for name in ("known_s", "left_s", "next_s"):
        values = [run[name] for run in result["runs"]]
        cells.append(f"{np.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")
    return cells


if __name__ == "__main__":
    raise SystemExit(main())
