"""What do collectives take in whole steps, and what does joining their small arrays save?

Takes models and meshes; for each hand-made plan times the step as it is run, the same with each array of a collective
by itself, and the same with local ops in the place of collectives (`spmd.partition.stand_ins`), interleaved in one
process. Beside the difference stands what the mesh's calibration says that the plan's collectives take. Prints a line a
plan and writes `results/collectives_in_steps-*`. Invariant: all programs of a case are timed in the same rounds.
"""

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

import jax

from alpa_cfp.costs import Rates
from alpa_cfp.profiling import MeasureOptions
from alpa_cfp.select.baselines import baselines
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.mesh_costs import mesh_costs
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.search_problem import find_boundaries
from alpa_cfp.spmd.compile import backend
from alpa_cfp.spmd.compile.executable import Client, MeshExecutable
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition.stand_ins import without_communication
from alpa_cfp_bench.timing import Ratio, Samples, interleave, ratio
from alpa_cfp_bench.workloads.sizes import SIZES, mesh_shape
from benchmarks import runner
from benchmarks.cfp_programs import Step, profiler, step_of
from benchmarks.runner import Benchmark

_HEADER = ("model", "mesh", "plan", "step, ms", "arrays apart / step", "collectives, ms", "estimate, ms", "collectives")
_TEXT = (
    "Time of a training step by plans that people write by hand. `arrays apart / step`: how many times as long the "
    "same program takes if each array of a collective is communicated by itself, as XLA does on CPUs, with a 95% "
    "interval. `collectives` is what the step takes more than with local ops in the place of its collectives "
    "(medians), `estimate` what the mesh's calibration says that they take."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = runner.parser(__doc__, models=["gpt", "mlp", "wide_resnet"], meshes=["2x4"], rounds=40, seed=0)
    options = parser.parse_args(argv)
    cases = itertools.product(options.models, options.meshes)
    results = (_case(model, mesh, options) for model, mesh in cases)
    return Benchmark("collectives_in_steps", _TEXT, _HEADER, _rows).run(results, options)


def _case(model: str, mesh: str, options: argparse.Namespace) -> dict[str, Any]:
    step = step_of(model, SIZES[model], mesh_shape(mesh))
    with tempfile.TemporaryDirectory() as directory:
        costs = _communication(step, Path(directory) / "profiles.sqlite", options.seed)
    planned = {name: step.planned(choices) for name, choices in _plans(step).items()}
    client = Client(jax.local_devices()[: prod(step.mesh.shape)])
    runs: dict[str, Callable[[], object]] = {}
    for name, module in planned.items():
        runs[f"{name}: step"] = _runner(client, module)
        with mock.patch.object(backend, "join_small_arrays", return_value=None):
            runs[f"{name}: apart"] = _runner(client, module)
        local = replace(module)
        assert module.partitioned is not None
        local.partitioned = without_communication(module.partitioned)
        runs[f"{name}: local"] = _runner(client, local)
    samples = interleave(runs, options.rounds, seed=options.seed)
    plans = [_plan(name, module, samples, costs) for name, module in planned.items()]
    return {"model": model, "mesh": mesh, "plans": plans, "load_average": os.getloadavg()[0]}


def _plan(name: str, module: HloModule, samples: dict[str, Samples], costs: Any) -> dict[str, Any]:
    step, apart, local = (samples[f"{name}: {which}"] for which in ("step", "apart", "local"))
    assert module.partitioned is not None
    collectives = module.partitioned.collectives
    return {
        "plan": name,
        "step_ms": step.median_s * 1e3,
        "apart": ratio(apart, step).to_json(),
        "collectives_ms": (step.median_s - local.median_s) * 1e3,
        "estimate_ms": sum(costs.by_key(collectives).values()) * 1e3,
        "collectives": len(collectives),
    }


def _communication(step: Step, database: Path, seed: int) -> Any:
    """What collectives cost by the mesh's calibration."""
    with profiler(step.mesh, database, MeasureOptions(seed=seed, progress=False)) as measuring:
        return mesh_costs(step.mesh, measuring.measure)[1]


def _plans(step: Step) -> dict[str, tuple[int, ...]]:
    """The choices of each hand-made plan; of equal ones the first."""
    boundaries = find_boundaries(step.module, step.blocks, step.block_candidates)
    problem = PlanSearch(CandidateCosts(step.block_candidates, boundaries, Rates())).problem
    found = baselines(step.blocks.blocks, step.block_candidates, problem, step.mesh)
    names: dict[tuple[int, ...], str] = {}
    for name, plan in found.items():
        names.setdefault(plan.choices, name)
    return {name: choices for choices, name in names.items()}


def _runner(client: Client, module: HloModule) -> Callable[[], object]:
    return MeshExecutable(client, module).runner_with_dummy_inputs()


def _rows(result: dict[str, Any]) -> list[list[str]]:
    return [
        [
            result["model"],
            result["mesh"],
            each["plan"],
            f"{each['step_ms']:.1f}",
            Ratio(**each["apart"]).paired_text,
            f"{each['collectives_ms']:.1f}",
            f"{each['estimate_ms']:.1f}",
            str(each["collectives"]),
        ]
        for each in result["plans"]
    ]


if __name__ == "__main__":
    sys.exit(main())
