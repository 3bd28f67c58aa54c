"""Programs profiled a minute on meshes of a Ray cluster, with one slot and with two.

A cluster of two nodes with four virtual devices each; the user's mesh is one of them. Takes the first candidates of a
GPT's training step on four devices; profiles all of them with one slot, which is that mesh, and with two, of which the
other one is the other node, in turn and in random order. The meshes are made before, and nothing is loaded at the
beginning. Both nodes are on this machine, which times one program at a time: what a second slot can gain here is that
it compiles where the first one does not keep all cores busy. `results/ray_profiling-*` has it.
"""

import contextlib
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import alpa
import numpy as np
from alpa.device_mesh import get_global_cluster

from alpa_cfp.alpa.ray_hosts import measurer_of
from alpa_cfp.candidates.block_candidates import distinct
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.profiling import DeviceDescription, MeasureOptions, Profiler
from alpa_cfp.profiling.meshes.pool import Pool
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp_bench.workloads.sizes import TINY
from benchmarks import runner
from benchmarks.cfp_programs import step_of
from benchmarks.ray_clusters import cluster

_DEVICES = 4
_SLOTS = (1, 2)
_TEXT = (
    "Programs profiled a minute: {programs} candidates of a tiny GPT on a 1x4 mesh of a Ray cluster, each compiled and "
    "timed {samples} times: median of {rounds} rounds, between the quartiles, and the ratio of the medians. The meshes "
    "are there before, and no program is loaded. Both slots, each a node of four virtual devices, share this machine "
    "and its cores: nothing else is compiled or timed while one of them times, so they gain only where one of them "
    "compiles what the other one's compiler leaves of the cores. On machines of their own they would time at once."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = runner.parser(__doc__, programs=24, rounds=5, samples=7, seed=0).parse_args(argv)
    alpa_config: Any = alpa.global_config
    alpa_config.backend = "cpu"
    candidates = distinct(step_of("gpt", TINY, (1, _DEVICES)).block_candidates)
    modules = [candidate.module for candidate in candidates[: options.programs + len(_SLOTS)]]
    how = MeasureOptions(options.samples, progress=False)
    with cluster(_DEVICES, _DEVICES), _pools(how) as pools:
        seconds = measure(pools, modules[len(_SLOTS) :], modules[: len(_SLOTS)], how, options.rounds, options.seed)
    results = [_row(slots, len(modules) - len(_SLOTS), seconds[slots]) for slots in _SLOTS]
    first = results[0]["median_per_min"]
    table = [["slots", "programs a minute", "ratio"]]
    for row in results:
        low, high = row["quartiles_per_min"]
        ratio = row["median_per_min"] / first
        table.append([str(row["slots"]), f"{row['median_per_min']:.1f} [{low:.1f}, {high:.1f}]", f"{ratio:.2f}"])
    text = _TEXT.format(programs=results[0]["programs"], samples=options.samples, rounds=options.rounds)
    return runner.finish("ray_profiling", text, results, table, options.no_results)


def measure(
    pools: Mapping[int, tuple[Pool, DeviceDescription]],
    modules: Sequence[HloModule],
    others: Sequence[HloModule],
    how: MeasureOptions,
    rounds: int,
    seed: int,
) -> dict[int, list[float]]:
    """The seconds of each round by the number of slots.

    Args:
        pools: What measures, by the number of slots.
        modules: What is profiled.
        others: One program for each slot, which takes the place there of what was loaded before.
        how: How to measure.
        rounds: How often.
        seed: Of the order.
    """
    drawn = random.Random(seed)
    seconds: dict[int, list[float]] = {slots: [] for slots in pools}
    for _ in range(rounds):
        for slots in drawn.sample(list(pools), len(pools)):
            _profile(pools[slots], others[:slots], replace(how, group=1, samples=1))
            start = time.perf_counter()
            _profile(pools[slots], modules, how)
            seconds[slots].append(time.perf_counter() - start)
    return seconds


def _profile(pool: tuple[Pool, DeviceDescription], modules: Sequence[HloModule], how: MeasureOptions) -> None:
    profiles = Profiler(pool, ProfileDatabase.in_memory(), how).measure(modules)
    if failed := [profile.failure_message for profile in profiles if profile.status == "failed"]:
        raise RuntimeError(f"{len(failed)} programs failed: {failed[0]}")


@contextlib.contextmanager
def _pools(how: MeasureOptions) -> Iterator[dict[int, tuple[Pool, DeviceDescription]]]:
    """The measurement pools, by number of slots; they close with the context."""
    alpa.init(cluster="ray")
    held: Any = get_global_cluster()
    mesh = held.get_physical_mesh([0], _DEVICES)
    with contextlib.ExitStack() as stack:
        stack.callback(alpa.shutdown)
        stack.callback(mesh.shutdown)
        pools = {slots: measurer_of(mesh, range(_DEVICES), replace(how, slots=slots)) for slots in _SLOTS}
        for pool, _ in pools.values():
            stack.callback(pool.close)
        yield pools


def _row(slots: int, programs: int, seconds: Sequence[float]) -> dict[str, Any]:
    rates = 60 * programs / np.array(seconds)
    low, middle, high = np.percentile(rates, (25, 50, 75))
    return {
        "slots": slots,
        "programs": programs,
        "seconds": [round(each, 3) for each in seconds],
        "median_per_min": round(float(middle), 2),
        "quartiles_per_min": [round(float(low), 2), round(float(high), 2)],
    }


if __name__ == "__main__":
    sys.exit(main())
