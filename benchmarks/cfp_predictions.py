"""Are CFP's predictions honest? Predicted against measured step time, and memory, of many plans of each model.

Takes models and meshes; takes the best predicted plans and the plain ones, and draws others by changing more and more
of them at random; predicts each from the profiles of its blocks, runs each whole, interleaved with the others. Prints a
line a case and writes `results/cfp_predictions-*`. Invariant: no prediction knows of any whole program's time.
"""

import argparse
import itertools
import operator
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from alpa_cfp.profiling import MeasureOptions
from alpa_cfp.select.baselines import baselines
from alpa_cfp_bench.workloads.sizes import SIZES, mesh_shape
from benchmarks import reports, runner
from benchmarks.cfp_programs import Step, changed, choosing, profiler, step_of
from benchmarks.runner import Benchmark, one_row

RANK_BAR, ERROR_BAR = 0.9, 0.15
_HEADER = ("model", "mesh", "plans", "rank", "error", "near the top", "by formula", "memory", "fastest, ms", "slowest")
_BEST = 4
_MARGIN = 1.5

_NEAR = 1.25

_TEXT = (
    "Predicted against measured time of a training step, of the best predicted plans, the plain ones, and others that "
    "differ from one of these in the strategy of one kind of block, of two, ..., of all. `rank` is Spearman's "
    "correlation of both times, `error` the median of |predicted - measured| / measured; `near the top` has both for "
    "the plans within {near} of the fastest, and their number. The predicted time is what the blocks compute when "
    "profiled alone, less what starting a program takes, and what the collectives of the plan's program take on this "
    "mesh; no whole plan has been timed. `by formula` is the same for what the search goes by, before it has seen the "
    "plan's program or with what it has learnt from others. `memory` is the median of the bytes of the compiled "
    f"program by those predicted. The bars are {RANK_BAR} and {ERROR_BAR:.0%}."
).replace("{near}", str(_NEAR))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    models = ["mlp", "gpt", "llama", "moe", "wide_resnet"]
    parser = runner.parser(__doc__, models=models, meshes=["1x8", "2x4"], plans=24, samples=7, seed=0)
    parser.add_argument("--database", type=Path, help="where profiles are kept (default: nowhere)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        database = options.database or Path(directory) / "profiles.sqlite"
        results = (_case(*names, database, options) for names in itertools.product(options.models, options.meshes))
        return Benchmark("cfp_predictions", _TEXT, _HEADER, one_row(_cells), verdict).run(results, options)


def _case(model: str, mesh: str, database: Path, options: argparse.Namespace) -> dict[str, Any]:
    plans = measure(
        step_of(model, SIZES[model], mesh_shape(mesh)), database, options.plans, options.samples, options.seed
    )
    return {"model": model, "mesh": mesh, **summary(plans), "plans": plans}


def measure(step: Step, database: Path, plans: int, samples: int, seed: int) -> list[dict[str, Any]]:
    """Predicted and measured seconds and bytes of so many plans, the fastest first."""
    with profiler(step.mesh, database, MeasureOptions(samples, seed=seed, progress=False)) as measuring:
        rates, costs = choosing(step, measuring, _MARGIN)
        chosen = {solution.choices: "best" for solution in costs.best(_BEST, None)}
        for name, plan in baselines(step.blocks.blocks, step.block_candidates, costs.problem, step.mesh).items():
            chosen.setdefault(plan.choices, name)
        drawn, roots = random.Random(seed), list(chosen)
        while len(chosen) < plans:
            chosen.setdefault(changed(step, drawn.choice(roots), drawn), "drawn")
        for choices in chosen:
            costs.look_at(choices)
        problem, graph = costs.problem, step.blocks.graph
        overhead_s = rates.overhead_s(len(graph.parameters) + len(graph.results))
        # All in one group: interleaved, whatever the machine does meanwhile.
        together = MeasureOptions(samples, group=len(chosen), seed=seed, progress=False)
    with profiler(step.mesh, database, together) as measuring:
        profiles = measuring.measure([step.planned(choices) for choices in chosen])
    rows = []
    for (choices, origin), profile in zip(chosen.items(), profiles, strict=True):
        if profile.status == "failed":
            continue
        sizes = (profile.argument_bytes, profile.output_bytes, profile.temporary_bytes)
        rows.append(
            {
                "plan": step.describe(choices),
                "origin": origin,
                "predicted_s": costs.predicted(choices).time_s + overhead_s,
                "formula_s": problem.time(choices) + overhead_s,
                "measured_s": profile.lower_half_mean_s,
                "predicted_bytes": problem.memory(choices).total,
                "compiled_bytes": sum(size or 0 for size in sizes) - (profile.aliased_bytes or 0),
                "collectives": sum(each.count for each in profile.collectives),
            }
        )
    return sorted(rows, key=lambda row: row["measured_s"])


def summary(plans: Sequence[dict[str, Any]]) -> dict[str, float]:
    """How good the predictions of some plans are."""
    measured = [plan["measured_s"] for plan in plans]
    result = {"memory": statistics.median(plan["compiled_bytes"] / plan["predicted_bytes"] for plan in plans)}
    for suffix, name in (("", "predicted_s"), ("_by_formula", "formula_s")):
        predicted = [plan[name] for plan in plans]
        result[f"rank{suffix}"] = float(spearmanr(predicted, measured)[0])  # pyright: ignore[reportArgumentType]
        errors = (abs(p - m) / m for p, m in zip(predicted, measured, strict=True))
        result[f"error{suffix}"] = statistics.median(errors)
    near = [plan for plan in plans if plan["measured_s"] <= _NEAR * min(measured)]
    times = [(plan["predicted_s"], plan["measured_s"]) for plan in near]
    result["near"] = len(near)
    result["rank_near"] = float(spearmanr(*zip(*times, strict=True))[0])  # pyright: ignore[reportArgumentType]
    result["error_near"] = statistics.median(abs(p - m) / m for p, m in times)
    return result


def verdict(rows: Sequence[reports.Row]) -> str:
    """How many cases keep to the bars, each by the median of its runs."""
    ranks, errors = (reports.medians(rows, ("model", "mesh"), operator.itemgetter(name)) for name in ("rank", "error"))
    return (
        f"Of {len(ranks)} cases {sum(rank >= RANK_BAR for rank in ranks)} keep to the bar of the rank, "
        f"{sum(error < ERROR_BAR for error in errors)} to that of the error, by the median of the runs of each case."
    )


def _cells(result: dict[str, Any]) -> list[str]:
    plans = result["plans"]
    return [
        result["model"],
        result["mesh"],
        str(len(plans)),
        f"{result['rank']:.3f}",
        f"{result['error']:.1%}",
        f"{result['rank_near']:.2f}, {result['error_near']:.1%} ({result['near']})" if "near" in result else "",
        f"{result['rank_by_formula']:.3f}, {result['error_by_formula']:.1%}",
        f"{result['memory']:.2f}",
        f"{plans[0]['measured_s'] * 1e3:.1f}",
        f"{plans[-1]['measured_s'] * 1e3:.1f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
