"""Are CFP's predictions honest? Predicted against measured step time, and memory, of many plans of each model.

Takes models and meshes; draws plans at random (a strategy for each kind of block), adds the best predicted and the
plain ones, predicts each from the profiles of its blocks, runs each whole, interleaved with the others. Prints a line a
case and writes `results/cfp_predictions-*`. Invariant: no prediction knows of any whole program.
"""

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from alpa_cfp.baselines import baselines
from alpa_cfp.profiling import MeasureOptions
from benchmarks import machine
from benchmarks.cfp_programs import Step, choosing, profiler, step_of
from benchmarks.programs import SIZES
from integration.meshes import mesh_shape

RANK_BAR, ERROR_BAR = 0.9, 0.15
_BEST = 4
_MARGIN = 1.5

_TEXT = (
    "Predicted against measured time of a training step. Each plan gives every kind of block a strategy; the predicted "
    "time is the sum of what the blocks took when profiled alone, less what starting a program takes, and of what "
    "moving values between them costs by formula. Measured is the whole step under that plan. `rank` is Spearman's "
    "correlation, `error` the median of |predicted - measured| / measured; `memory` is the median of the bytes of the "
    f"compiled program by those predicted. The bars are {RANK_BAR} and {ERROR_BAR:.0%}."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--models", nargs="+", default=["mlp", "gpt", "llama", "moe", "wide_resnet"])
    parser.add_argument("--meshes", nargs="+", default=["1x8", "2x4"])
    parser.add_argument("--plans", type=int, default=24, help="plans of each model (default 24)")
    parser.add_argument("--samples", type=int, default=7, help="runs of each program (default 7)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--database", type=Path, help="where profiles are kept (default: nowhere)")
    parser.add_argument("--no-results", action="store_true", help="print only, write no files")
    options = parser.parse_args(argv)
    results = []
    with tempfile.TemporaryDirectory() as directory:
        database = options.database or Path(directory) / "profiles.sqlite"
        for name in options.models:
            for mesh in options.meshes:
                step = step_of(name, SIZES[name], mesh_shape(mesh))
                plans = measure(step, database, options.plans, options.samples, options.seed)
                results.append({"model": name, "mesh": mesh, **summary(plans), "plans": plans})
                print(" | ".join(_cells(results[-1])), flush=True)
                if not options.no_results:
                    machine.write("cfp_predictions", f"{_TEXT}\n\n{_verdict(results)}", results, _table(results))
    print(_verdict(results))
    return 0


def measure(step: Step, database: Path, plans: int, samples: int, seed: int) -> list[dict[str, Any]]:
    """Predicted and measured seconds and bytes of so many plans, the fastest first."""
    with profiler(step.mesh, database, MeasureOptions(samples, seed=seed, progress=False)) as measuring:
        rates, costs = choosing(step, measuring, _MARGIN)
        chosen = {solution.choices: "best" for solution in costs.best(_BEST, None)}
        for name, plan in baselines(step.blocks.blocks, step.units, costs.problem, step.mesh).items():
            chosen.setdefault(plan.choices, name)
        drawn = random.Random(seed)
        while len(chosen) < plans:
            of_kind = {unit.kind: drawn.randrange(len(unit.candidates)) for unit in step.units}
            chosen.setdefault(tuple(of_kind[unit.kind] for unit in step.units), "drawn")
        costs.measure(list(chosen))
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
                "predicted_s": problem.time(choices) + overhead_s,
                "measured_s": profile.typical_s,
                "predicted_bytes": problem.memory(choices).total,
                "compiled_bytes": sum(size or 0 for size in sizes) - (profile.aliased_bytes or 0),
                "collectives": sum(each.count for each in profile.collectives),
            }
        )
    return sorted(rows, key=lambda row: row["measured_s"])


def summary(plans: Sequence[dict[str, Any]]) -> dict[str, float]:
    """How good the predictions of some plans are."""
    predicted, measured = ([plan[name] for plan in plans] for name in ("predicted_s", "measured_s"))
    # From several identical numbers there is no rank.
    rank = float(spearmanr(predicted, measured)[0])  # pyright: ignore[reportArgumentType]
    return {
        "rank": rank,
        "error": statistics.median(abs(p - m) / m for p, m in zip(predicted, measured, strict=True)),
        "memory": statistics.median(plan["compiled_bytes"] / plan["predicted_bytes"] for plan in plans),
    }


def _verdict(results: Sequence[dict[str, Any]]) -> str:
    ranks = sum(result["rank"] >= RANK_BAR for result in results)
    errors = sum(result["error"] < ERROR_BAR for result in results)
    return f"Of {len(results)} cases {ranks} keep to the bar of the rank, {errors} to that of the error."


def _table(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    header = ["model", "mesh", "plans", "rank", "error", "memory", "fastest, ms", "slowest, ms"]
    return [header, *(_cells(result) for result in results)]


def _cells(result: dict[str, Any]) -> list[str]:
    plans = result["plans"]
    return [
        result["model"],
        result["mesh"],
        str(len(plans)),
        f"{result['rank']:.3f}",
        f"{result['error']:.1%}",
        f"{result['memory']:.2f}",
        f"{plans[0]['measured_s'] * 1e3:.1f}",
        f"{plans[-1]['measured_s'] * 1e3:.1f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
