"""Do drawn plans compile for devices that are not here, and is their memory predicted?

Takes models at the width of their published sizes, two layers deep, and targets; draws plans for each, compiles them by
the target's compiler, and compares what a device needs with the prediction. Prints a line a case and writes
`results/target_memory-*`. Invariant: the plans of a case depend on the seed alone. It needs the compilers of the extras
`gpu-target` and `tpu-target` and JAX_PLATFORMS=cpu.
"""

import argparse
import itertools
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from alpa_cfp import target
from alpa_cfp.costs import Rates
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.profiling import MeasureOptions, Profiler
from alpa_cfp.profiling.targets.runner import TargetRunner, description_of
from alpa_cfp.select.baselines import baselines
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.profiles import failure_of
from alpa_cfp.select.search_problem import find_boundaries
from alpa_cfp_bench.workloads.published import SUITES, Case
from alpa_cfp_bench.workloads.published_programs import program_of
from benchmarks import runner
from benchmarks.cfp_programs import Step, changed, module_of, step_of_module
from benchmarks.runner import Benchmark

# Two layers are enough for what is between layers; a Wide-ResNet has a block in each stage.
_LAYERS, _STAGES = 2, (1, 1, 1, 1)
MODELS = {"gpt": "1.3B", "llama": "7B", "moe": "1.3B", "wide_resnet": "1B"}
_HEADER = ("model", "target", "plans", "compiled", "memory by the compiler, GB", "predicted / compiled", "error")
_TEXT = (
    "Memory that one device needs for a training step, predicted and by the compiler of a target, for plans that were "
    "drawn: plans by hand with any other strategies for some kinds of blocks. Models have the width of their "
    f"published sizes ({', '.join(f'{suite} {name}' for suite, name in MODELS.items())}) and {_LAYERS} layers. "
    "`predicted / compiled`: the least, the median and the largest; `error` is the median of the deviations."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = runner.parser(__doc__, models=list(MODELS), drawn=10, seed=0)
    parser.add_argument("--targets", nargs="+", default=["h100:1x8", "v5e:2x4"], help="for which devices")
    parser.add_argument("--mesh", nargs="+", type=int, default=[2, 4], help="the sizes of its axes")
    options = parser.parse_args(argv)
    results = (_case(*case, options) for case in itertools.product(options.models, options.targets))
    return Benchmark("target_memory", _TEXT, _HEADER, lambda result: [_cells(result)], _verdict).run(results, options)


def _case(model: str, name: str, options: argparse.Namespace) -> dict[str, Any]:
    on = target(name)
    case = replace(SUITES[model][MODELS[model]], mesh=tuple(options.mesh), layers=_LAYERS, stages=_STAGES)
    program = program_of(_with_depth(case))
    platform = {"gpu": "cuda"}.get(on.chip.kind, on.chip.kind)
    module = module_of(model, program.step, program.state, program.batch, platform)
    step = step_of_module(module, tuple(options.mesh))
    plans = drawn_plans(step, options.drawn, options.seed)
    measure = MeasureOptions(1, progress=False)
    with (
        tempfile.TemporaryDirectory() as directory,
        ProfileDatabase.open(Path(directory) / "profiles.sqlite") as database,
        Profiler((TargetRunner(on, measure), description_of(on)), database, measure) as profiler,
    ):
        profiles = profiler.measure([step.planned(choices) for choices in plans])
    return {
        "model": model,
        "target": name,
        "predicted_bytes": list(plans.values()),
        "compiled_bytes": [each.memory_bytes if each.samples_s else None for each in profiles],
        "failures": [failure_of(each) for each in profiles if not each.samples_s],
        "load_average": os.getloadavg()[0],
    }


def _with_depth(case: Case) -> Case:
    return case if case.suite == "wide_resnet" else replace(case, stages=())


def drawn_plans(step: Step, count: int, seed: int) -> dict[tuple[int, ...], int]:
    """Plans, with the bytes that a device is predicted to need."""
    boundaries, random_ = find_boundaries(step.module, step.blocks, step.block_candidates), random.Random(seed)
    problem = PlanSearch(CandidateCosts(step.block_candidates, boundaries, Rates())).problem
    by_hand = baselines(step.blocks.blocks, step.block_candidates, problem, step.mesh).values()
    roots, found = [plan.choices for plan in by_hand], dict[tuple[int, ...], int]()
    while len(found) < count:
        choices = changed(step, random_.choice(roots), random_)
        found[choices] = problem.solution(choices).memory.total
    return found


def _ratios(result: dict[str, Any]) -> list[float]:
    pairs = zip(result["predicted_bytes"], result["compiled_bytes"], strict=True)
    return [predicted / compiled for predicted, compiled in pairs if compiled]


def _cells(result: dict[str, Any]) -> list[str]:
    ratios, compiled = _ratios(result), [each for each in result["compiled_bytes"] if each]
    if not ratios:
        return [result["model"], result["target"], str(len(result["predicted_bytes"])), "0", "", "", ""]
    return [
        result["model"],
        result["target"],
        str(len(result["predicted_bytes"])),
        str(len(compiled)),
        f"{min(compiled) / 1e9:.2f} to {max(compiled) / 1e9:.2f}",
        f"{min(ratios):.2f}, {statistics.median(ratios):.2f}, {max(ratios):.2f}",
        f"{100 * statistics.median(abs(ratio - 1) for ratio in ratios):.0f}%",
    ]


def _verdict(results: Sequence[dict[str, Any]]) -> str:
    ratios = [ratio for result in results for ratio in _ratios(result)]
    plans = sum(len(result["predicted_bytes"]) for result in results)
    error = statistics.median(abs(ratio - 1) for ratio in ratios) if ratios else float("nan")
    return f"{len(ratios)} of {plans} plans compile; the median deviation of memory is {100 * error:.0f}%."


if __name__ == "__main__":
    sys.exit(main())
