"""How Alpa's ILP grows with the depth of a model: seconds to build and to solve it, variables, memory.

Takes numbers of layers and logical meshes; runs alpa's `run_auto_sharding_pass` over a whole training step of GPT at
the sizes of Alpa's own benchmark, of which only shapes exist: no device, no array. Prints a line a case and writes
`results/ilp_growth-*`. Invariant: each case has a process of its own, so the peak of memory is that case's.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from types import ModuleType
from typing import Any

import alpa
import numpy as np
from alpa.shard_parallel.auto_sharding import LogicalDeviceMesh, run_auto_sharding_pass

from alpa_cfp_bench.workloads.sizes import mesh_shape
from alpa_on_jax.xla_extension.auto_sharding import ilp
from benchmarks import runner
from benchmarks.abstract_gpt import Sizes, training_step
from benchmarks.runner import Benchmark, one_row

# Of `VirtualPhysicalMesh.get_logical_mesh`: the links of axis 1 are ten times as fast as those of axis 0.
MESH_ALPHA, MESH_BETA = (1, 1), (1, 0.1)

BUILD_BAR_S = 60.0
MEMORY_BAR_GIB = 4.0
_HEADER = (
    *("case", "lower, s", "simplify, s", "build in all, s", "solve, s", "CBC, CPU s", "write, s", "values", "edges"),
    *("variables", "objective", "peak, GiB", "an empty case, GiB", "CBC peak at most, GiB", "load"),
)

_TEXT = (
    "Alpa's intra-operator pass over a whole training step of GPT as in Alpa's `benchmark/alpa` (forward, backward, "
    "AdamW with a float32 master copy, float16 otherwise, no rematerialisation), with {sizes}, for one micro-batch, "
    "with `prefer_reduce_scatter`. `lower` is tracing and lowering to StableHLO; `build in all` is from there to the "
    "solver's arrays (simplify, graph, strategies, costs); `solve` is alpa's own solver: `CBC` is the CPU time of the "
    "CBC process in it, most of the rest is alpa's Python that writes the problem down for CBC; `write` is what "
    "follows: reduce-scatters and annotations. `values` are the ILP's nodes before merging, `variables` its binary "
    "ones, of nodes and edges. Alpa lets CBC search for at most 600 s; what ends earlier is optimal. `peak` is of the "
    "case's process, where `an empty case` is what importing everything takes; `CBC peak` is an upper bound for the "
    "CBC process beside it, which counts as its own what the process that started it held."
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One program on one mesh."""

    sizes: Sizes
    mesh: str

    def __str__(self) -> str:
        return f"{self.sizes.layers} layers {self.mesh}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names, until its time is up."""
    sizes = {field.name: field.default for field in dataclasses.fields(Sizes)[1:]}
    parser = runner.parser(__doc__, layers=[2, 4, 8, 16, 24, 32], meshes=["2x4", "1x8"], name="ilp_growth", **sizes)
    parser.add_argument("--limit-s", type=float, default=900, help="no case starts later (default 900)")
    options = parser.parse_args(argv)
    sizes = {name: getattr(options, name) for name in sizes}
    text = _TEXT.format(sizes=", ".join(f"{name.replace('_', '-')} {size}" for name, size in sizes.items()))
    cases = [Case(Sizes(layers, **sizes), mesh) for layers, mesh in product(options.layers, options.meshes)]
    return Benchmark(options.name, text, _HEADER, one_row(_cells), _verdict).run(
        _results(cases, options.limit_s), options
    )


def _results(cases: Sequence[Case], limit_s: float) -> Iterator[dict[str, Any]]:
    started = time.monotonic()
    for case in cases:
        spent_s = time.monotonic() - started
        if spent_s > limit_s:
            print(f"{case} and what follows is left out: {spent_s:.0f} s have been spent")
            return
        yield _in_a_process_of_its_own(measure, case)


def measure(case: Case) -> dict[str, Any]:
    """Run alpa's pass for one case in this process, whose peak of memory must be the case's."""
    empty_gib = _peak_gib(resource.RUSAGE_SELF)
    started = time.perf_counter()
    hlo = training_step(case.sizes)
    lower_s = time.perf_counter() - started
    shape = mesh_shape(case.mesh)
    mesh = LogicalDeviceMesh(None, np.arange(np.prod(shape)).reshape(shape), MESH_ALPHA, MESH_BETA)
    option = alpa.AutoShardingOption(prefer_reduce_scatter=True)
    with _timed(ilp, ("simplify", "build_graph", "build_ilp", "solve")) as calls:
        started = time.perf_counter()
        run_auto_sharding_pass(hlo, mesh, "single", 1, option)
        pass_s = time.perf_counter() - started
    seconds = {name: call.seconds for name, call in calls.items()}
    problem, solution = calls["build_ilp"].result.problem, calls["solve"].result
    cbc = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "case": str(case),
        "mesh": case.mesh,
        **dataclasses.asdict(case.sizes),
        "seconds": {
            "lower": lower_s,
            **seconds,
            "build": seconds["simplify"] + seconds["build_graph"] + seconds["build_ilp"],
            "cbc_cpu": cbc.ru_utime + cbc.ru_stime,
            "write": pass_s - sum(seconds.values()),
            "pass": pass_s,
        },
        "values": len(problem.lengths),
        "merged_nodes": int(np.sum(problem.follow < 0)),
        "edges": len(problem.edges),
        "variables": problem.num_variables,
        "objective": solution.objective,
        "peak_gib": _peak_gib(resource.RUSAGE_SELF),
        "empty_peak_gib": empty_gib,
        "cbc_peak_gib": _peak_gib(resource.RUSAGE_CHILDREN),
        "load_average": os.getloadavg()[0],
    }


@dataclasses.dataclass
class _Call:
    """How long the one call of a function took, and what it returned."""

    seconds: float = 0.0
    result: Any = None


@contextlib.contextmanager
def _timed(module: ModuleType, names: Sequence[str]) -> Iterator[dict[str, _Call]]:
    """Within the context, calls of these functions of `module` are timed."""
    originals: dict[str, Callable[..., Any]] = {name: getattr(module, name) for name in names}
    calls = {name: _Call() for name in names}

    def timing(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            calls[name].result = originals[name](*args, **kwargs)
            calls[name].seconds += time.perf_counter() - started
            return calls[name].result

        return call

    for name in names:
        setattr(module, name, timing(name))
    try:
        yield calls
    finally:
        for name, original in originals.items():
            setattr(module, name, original)


def _in_a_process_of_its_own(function: Callable[[Case], dict[str, Any]], case: Case) -> dict[str, Any]:
    # Spawned, not forked: a forked process starts with the memory of this one.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, case).result()


def _peak_gib(who: int) -> float:
    """The most memory of this process, or of the largest of its children that has ended."""
    return resource.getrusage(who).ru_maxrss / 2**20


def _verdict(results: Sequence[dict[str, Any]]) -> str:
    """Which cases keep to the bars."""
    slower = [result["case"] for result in results if result["seconds"]["build"] > result["seconds"]["solve"]]
    slow = [result["case"] for result in results if result["seconds"]["build"] > BUILD_BAR_S]
    large = [result["case"] for result in results if result["peak_gib"] + result["cbc_peak_gib"] > MEMORY_BAR_GIB]
    bars = {
        "building takes no longer than solving": slower,
        f"building takes at most {BUILD_BAR_S:.0f} s": slow,
        f"both processes together take at most {MEMORY_BAR_GIB:.0f} GiB": large,
    }
    verdicts = (f"{bar}: {'not ' + ', '.join(cases) if cases else 'yes'}" for bar, cases in bars.items())
    return f"Of {len(results)} cases: {'; '.join(verdicts)}."


def _cells(result: dict[str, Any]) -> list[str]:
    phases = ("lower", "simplify", "build", "solve", "cbc_cpu", "write")
    return [
        result["case"],
        *(f"{result['seconds'][phase]:.2f}" for phase in phases),
        *(str(result[name]) for name in ("values", "edges", "variables")),
        f"{result['objective']:.4g}",
        *(f"{result[name]:.2f}" for name in ("peak_gib", "empty_peak_gib", "cbc_peak_gib")),
        f"{result['load_average']:.1f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
