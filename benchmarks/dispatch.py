"""The time to call a compiled step, alpa's against `jax.jit`'s, for a step that computes next to nothing.

The step adds one to each of many small parameters on a mesh and donates them, so its time is that of the call:
flattening, looking up the program, handing over and wrapping the arrays. Prints microseconds a call for several numbers
of parameters and writes `results/dispatch-*`; `--profile` prints where the time of alpa's call goes instead.
"""

import cProfile
import pstats
import sys
from collections.abc import Callable, Sequence
from typing import Any

import alpa
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_cfp_bench.timing import interleave, ratio
from alpa_cfp_bench.workloads.meshes import logical_mesh
from alpa_cfp_bench.workloads.sizes import MESH_AXES
from benchmarks import runner
from benchmarks.runner import Benchmark, one_row

MESH = "2x4"
_TIMES = ("jit enqueued", "alpa enqueued", "jit ready", "alpa ready")
_SPEC = PartitionSpec(MESH_AXES)

_TEXT = (
    "Time of a call of a step that adds one to each of some small parameters (split over 8 devices, donated, on the "
    "mesh already). `enqueued`: until the call returns; `ready`: until the results are there. Medians, interleaved in "
    "random order in one process. `overhead` is the median over rounds of alpa's time less that of `jax.jit`, until "
    "ready."
)

Params = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, or the profile, that the command line asks for."""
    parser = runner.parser(__doc__, parameters=[4, 40, 400], rounds=200, seed=0)
    parser.add_argument("--profile", action="store_true", help="print where alpa's time goes, with most parameters")
    options = parser.parse_args(argv)
    if options.profile:
        _profile(max(options.parameters), options.rounds)
        return 0
    results = (measure(count, options.rounds, options.seed) for count in options.parameters)
    header = ("parameters", *_TIMES, "overhead", "alpa / jit, ready")
    return Benchmark("dispatch", _TEXT, header, one_row(_cells)).run(results, options)


def _cells(result: dict[str, Any]) -> list[str]:
    times = [result["median_us"][name] for name in _TIMES]
    return [
        str(result["parameters"]),
        *(f"{us:.0f} us" for us in (*times, result["overhead_us"])),
        result["ratio_text"],
    ]


def measure(count: int, rounds: int, seed: int) -> dict[str, Any]:
    """Time calls with `count` parameters."""
    alpa_step, jit_step = _Caller(*_alpa_step(count)), _Caller(*_jit_step(count))
    # Two runs each, since the wait for the results would otherwise be part of the next call.
    enqueue = interleave(
        {"alpa": alpa_step.enqueue, "jit": jit_step.enqueue}, rounds, seed=seed, after=jax.block_until_ready
    )
    ready = interleave({"alpa": alpa_step.until_ready, "jit": jit_step.until_ready}, rounds, seed=seed)
    overhead = np.median(np.array(ready["alpa"].seconds) - np.array(ready["jit"].seconds))
    samples = {f"{name} enqueued": sample for name, sample in enqueue.items()}
    samples |= {f"{name} ready": sample for name, sample in ready.items()}
    of_jit = ratio(ready["alpa"], ready["jit"])
    return {
        "parameters": count,
        "median_us": {name: round(sample.median_s * 1e6, 1) for name, sample in samples.items()},
        "min_us": {name: round(sample.min_s * 1e6, 1) for name, sample in samples.items()},
        "overhead_us": round(float(overhead) * 1e6, 1),
        "ratio": of_jit.to_json(),
        "ratio_text": of_jit.paired_text,
    }


class _Caller:
    """A step with its parameters: each call's results are the next one's argument."""

    def __init__(self, step: Callable[[Params], Params], params: Params):
        self._step, self._params = step, params

    def enqueue(self) -> Params:
        self._params = self._step(self._params)
        return self._params

    def until_ready(self) -> None:
        jax.block_until_ready(self.enqueue())


def _parameters(count: int) -> Params:
    return {f"parameter_{i}": np.full((8, 4), i, np.float32) for i in range(count)}


def _step(params: Params) -> Params:
    return {name: value + 1 for name, value in params.items()}


def _alpa_step(count: int) -> tuple[Callable[[Params], Params], Params]:
    params = _parameters(count)
    specs = (dict.fromkeys(params, _SPEC),)
    method = alpa.ShardParallel(
        devices=logical_mesh(MESH),
        auto_sharding_option=alpa.AutoShardingOption(enable_auto_sharding=False),
        manual_sharding_option=alpa.ManualShardingOption(MESH_AXES, in_axis_resources=specs),
    )
    step: Any = alpa.parallelize(_step, donate_argnums=(0,), batch_argnums=(), method=method)
    (params,) = step.preshard_dynamic_args(params)
    return step, params


def _jit_step(count: int) -> tuple[Callable[[Params], Params], Params]:
    mesh = Mesh(np.array(jax.local_devices()[:8]).reshape(2, 4), MESH_AXES)
    sharding = NamedSharding(mesh, _SPEC)
    step = jax.jit(_step, in_shardings=sharding, out_shardings=sharding, donate_argnums=(0,))
    return step, jax.device_put(_parameters(count), sharding)


def _profile(count: int, rounds: int) -> None:
    call = _Caller(*_alpa_step(count))
    call.until_ready()
    profiler = cProfile.Profile()
    for _ in range(rounds):
        profiler.enable()
        results = call.enqueue()
        profiler.disable()
        jax.block_until_ready(results)
    print(f"{rounds} calls with {count} parameters; cProfile itself slows Python functions down")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    sys.exit(main())
