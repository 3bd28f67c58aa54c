"""Seconds to make a mesh of hosts that Ray manages, and what a training step on it costs beside the local mesh.

The local mesh has 8 devices in this process. One host has 8 in a process that Ray manages: the same program, so that
the difference is what calls through Ray cost. Two hosts have 4 each: the same plan, and the hosts communicate through
gloo. A step is measured in two ways: alone, until its loss is here; and as one of many that are asked for ahead, whose
last loss is fetched.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import alpa
import jax
import numpy as np
from alpa.device_mesh import DeviceCluster, DistributedPhysicalDeviceMesh, LocalPhysicalDeviceMesh, set_global_cluster

from alpa_cfp_bench.timing import Samples, interleave, ratio
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import SIZES, TINY, Size
from benchmarks import runner
from benchmarks.ray_clusters import cluster

_CASES = {"mlp, tiny": ("mlp", TINY), "mlp": ("mlp", SIZES["mlp"]), "gpt": ("gpt", SIZES["gpt"])}
_AHEAD = 10
_TEXT = (
    "milliseconds a training step (data parallel, 8 virtual devices): median, and half the distance of the quartiles. "
    "`alone`: until its loss is here. `ahead`: one of 10 that are asked for at once, until the last loss is here. "
    "`over local`: median of the ratios within a round, and its 95% interval. `1 host` has all 8 devices in a process "
    "of Ray's, `2 hosts` have 4 each; all run on this machine, so that what the hosts have to say to each other goes "
    "through its loopback."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = runner.parser(__doc__, rounds=30, meshes=5, seed=0)
    parser.add_argument("--cases", nargs="+", default=list(_CASES), choices=list(_CASES), help="which models")
    options = parser.parse_args(argv)
    results: list[dict[str, Any]] = []
    made: list[dict[str, Any]] = []
    alpa_config: Any = alpa.global_config
    alpa_config.backend = "cpu"
    with cluster(8, 4, 4):
        made += _seconds_to_make(options.meshes)
        for case in options.cases:
            results += _steps(case, options.rounds, options.seed)
    table = [["", "mesh", "alone, ms", "over local", "ahead, ms", "over local"]]
    table += [_row(result) for result in results]
    making = "; ".join(
        f"{row['mesh']}: {np.median(row['seconds']):.2f} ({min(row['seconds']):.2f} to {max(row['seconds']):.2f})"
        for row in made
    )
    text = f"Seconds to make a mesh, median of {options.meshes} and range: {making}. The table: {_TEXT}"
    return runner.finish("ray_meshes", text, [*made, *results], table, options.no_results)


def _held(num_hosts: int, num_devices: int) -> tuple[Any, DistributedPhysicalDeviceMesh]:
    """Devices of the cluster, and a mesh of them."""
    held: Any = DeviceCluster(num_nodes=num_hosts, num_devices_per_node=num_devices)
    set_global_cluster(held)
    return held, held.get_physical_mesh()


def _end(held: Any, mesh: Any) -> None:
    mesh.shutdown()
    held.delete_placement_group()


def _seconds_to_make(times: int) -> list[dict[str, Any]]:
    rows = []
    for num_hosts, num_devices in ((1, 4), (2, 4), (3, 4)):
        seconds = []
        for _ in range(times):
            start = time.perf_counter()
            held, mesh = _held(num_hosts, num_devices)
            seconds.append(time.perf_counter() - start)
            _end(held, mesh)
        rows.append({"mesh": f"{num_hosts} x {num_devices}", "seconds": seconds})
        print(rows[-1], flush=True)
    return rows


def _steps(case: str, rounds: int, seed: int) -> list[dict[str, Any]]:
    """A model's step on each mesh, side by side."""
    held = [_held(1, 8), _held(2, 4)]
    meshes: dict[str, Any] = {"local": LocalPhysicalDeviceMesh(jax.local_devices()[:8])}
    meshes |= {"1 host": held[0][1], "2 hosts": held[1][1]}
    try:
        stepping = {name: _Stepping(*_CASES[case], mesh) for name, mesh in meshes.items()}
        losses = [step.alone() for step in stepping.values()]
        np.testing.assert_allclose(losses, losses[0], rtol=1e-5)
        calls: dict[str, Callable[[], Any]] = {f"{name} alone": step.alone for name, step in stepping.items()}
        calls |= {f"{name} ahead": step.ahead for name, step in stepping.items()}
        samples = interleave(calls, rounds, seed=seed)
    finally:
        for each in held:
            _end(*each)
    return [
        {"case": case, "mesh": name} | _compared("alone", name, samples, 1) | _compared("ahead", name, samples, _AHEAD)
        for name in meshes
    ]


class _Stepping:
    """Training on a mesh, always from the same state on."""

    def __init__(self, model: str, size: Size, mesh: Any):
        built = build(model, size)
        method = alpa.ShardParallel(mesh, auto_sharding_option=alpa.AutoShardingOption(force_data_parallel=True))
        self._step: Any = alpa.parallelize(train_step(built, alpa.value_and_grad), donate_argnums=(), method=method)
        self._batch = self._step.preshard_dynamic_args(built.state, built.batch)[1]
        self._state = self._step(built.state, self._batch)[0]

    def alone(self) -> float:
        """One step, until its loss is here."""
        return float(np.asarray(self._step(self._state, self._batch)[1]["loss"]))

    def ahead(self) -> None:
        """Many, each with the state that the one before gives."""
        state, metrics = self._state, {}
        for _ in range(_AHEAD):
            state, metrics, _ = self._step(state, self._batch)
        np.asarray(metrics["loss"])


def _compared(way: str, name: str, samples: Mapping[str, Samples], steps: int) -> dict[str, Any]:
    own = samples[f"{name} {way}"]
    over = ratio(own, samples[f"local {way}"])
    return {
        f"{way}_ms": own.median_s * 1e3 / steps,
        f"{way}_spread_ms": own.median_s * own.spread * 1e3 / steps,
        f"{way}_over_local": over.to_json(),
        f"{way}_more_ms": (own.median_s - samples[f"local {way}"].median_s) * 1e3 / steps,
    }


def _row(result: Mapping[str, Any]) -> list[str]:
    cells = [result["case"], result["mesh"]]
    for way in ("alone", "ahead"):
        over = result[f"{way}_over_local"]
        cells.append(f"{result[f'{way}_ms']:.1f} ± {result[f'{way}_spread_ms']:.1f}")
        cells.append(f"{over['paired']:.2f} ({over['paired_low']:.2f} to {over['paired_high']:.2f})")
    return cells


if __name__ == "__main__":
    raise SystemExit(main())
