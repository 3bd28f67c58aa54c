"""Does CFP find what trying everything finds? Its plan and its measurements beside the full product of strategies.

Takes dense networks small enough for both; plans each with pruning, plans each with all candidates of all blocks
measured, and runs the whole step under every combination of strategies. Then the best of each way run more often,
interleaved. Prints a line a case and writes `results/cfp_pruning-*`. Invariant: all three choose among the same
candidates.
"""

import itertools
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from alpa_cfp.database import Profile
from alpa_cfp.profiling import MeasureOptions, Profiler
from alpa_cfp.select.refinement import Refinement
from alpa_cfp.select.trial_rounds import TrialRounds
from alpa_cfp_bench.workloads.sizes import mesh_shape
from benchmarks import runner
from benchmarks.cfp_programs import Step, choosing, module_of, profiler, step_of_module
from benchmarks.cfp_toys import dense_arguments, dense_step
from benchmarks.runner import Benchmark, one_row

BAR = 0.2
_HEADER = ("case", "mesh", "product", "all", "pruned", "pruned / product", "plan", "by product", "by all")
# Layers, samples, width.
CASES = {"many samples": (3, 4096, 256), "balanced": (3, 1024, 512), "large weights": (3, 64, 1024)}
_SAMPLES, _FINAL_SAMPLES, _COUNT = 5, 40, 3
# So many of the product's fastest run again.
_BEST_OF_PRODUCT = 5
_HALVES = slice(_FINAL_SAMPLES // 2), slice(_FINAL_SAMPLES // 2, _FINAL_SAMPLES)

_TEXT = (
    "Three dense layers as in cfp_toys, every block with all its candidates (what each mesh axis splits, where state "
    "is kept). `product` programs are all combinations, run end to end; `all` are all candidates of all blocks, and "
    "`pruned` those that CFP measured, both with the whole plans that were compiled at the end. `by product` and `by "
    "all` are the time of CFP's plan by that of the best of the product, and of the plan from all candidates, when "
    f"these and the product's {_BEST_OF_PRODUCT} fastest run interleaved until each has {_FINAL_SAMPLES} samples: the "
    "first half says which of them is the best, the second half gives the times; `=` where it is the same plan. The "
    f"bar is {BAR:.0%} of "
    "the product's measurements."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = runner.parser(__doc__, meshes=["1x4"])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    options = parser.parse_args(argv)
    results = (_case(*names) for names in itertools.product(options.cases, options.meshes))
    return Benchmark("cfp_pruning", _TEXT, _HEADER, one_row(_cells), _verdict).run(results, options)


def _case(name: str, mesh: str) -> dict[str, Any]:
    module = module_of(name, dense_step(jax.value_and_grad), *dense_arguments(*CASES[name]))
    return {"case": name, "mesh": mesh, **measure(step_of_module(module, mesh_shape(mesh)))}


def measure(step: Step) -> dict[str, Any]:
    """Plan in three ways."""
    with tempfile.TemporaryDirectory() as directory:
        options = MeasureOptions(_SAMPLES, progress=False)
        found, measured = {}, {}
        for way, margin in (("pruned", 1.5), ("all", math.inf)):
            # Each way with a database of its own: neither knows what the other measured.
            with profiler(step.mesh, Path(directory) / f"{way}.sqlite", options) as measuring:
                found[way], measured[way] = _planned(step, measuring, margin)
        with profiler(step.mesh, Path(directory) / "product.sqlite", options) as measuring:
            plans = list(itertools.product(*(range(len(block.candidates)) for block in step.block_candidates)))
            profiles = measuring.measure([step.planned(choices) for choices in plans])
            times = {
                choices: profile.lower_half_mean_s
                for choices, profile in zip(plans, profiles, strict=True)
                if profile.status == "measured"
            }
            measured["product"] = len(plans)
            fastest = sorted(times, key=lambda choices: times[choices])[:_BEST_OF_PRODUCT]
            finals = list(dict.fromkeys([*found.values(), *fastest]))
            again = measuring.measure([step.planned(choices) for choices in finals], _FINAL_SAMPLES)
            choosing_s, final_s = (_seconds(finals, again, half) for half in _HALVES)
            found["product"] = min(fastest, key=lambda choices: choosing_s[choices])
    return {
        "measured": measured,
        "plans": {way: step.describe(choices) for way, choices in found.items()},
        "seconds": {way: final_s[choices] for way, choices in found.items()},
    }


def _seconds(
    plans: Sequence[tuple[int, ...]], profiles: Sequence[Profile], samples: slice
) -> dict[tuple[int, ...], float]:
    """The time of each plan, from a slice of its samples."""
    parts = (replace(profile, samples_s=profile.samples_s[samples]) for profile in profiles)
    return {choices: part.lower_half_mean_s for choices, part in zip(plans, parts, strict=True)}


def _planned(step: Step, measuring: Profiler, margin: float) -> tuple[tuple[int, ...], int]:
    """The plan, and how many programs were measured for it."""
    _, search = choosing(step, measuring, margin)
    rounds = TrialRounds(
        step.blocks, step.block_candidates, step.mesh, search, measuring.measure, step.planned, lambda module: (),
        _COUNT, _SAMPLES,
    )  # fmt: skip
    refinement = Refinement(rounds)
    return refinement.best(None).solution.choices, search.costs.measured + len(refinement.tried)


def _verdict(results: Sequence[dict[str, Any]]) -> str:
    few = sum(_share(result) <= BAR for result in results)
    same = sum(result["plans"]["pruned"] == result["plans"]["product"] for result in results)
    worst = max(result["seconds"]["pruned"] / result["seconds"]["product"] for result in results)
    return (
        f"Of {len(results)} cases CFP measures at most {BAR:.0%} of the product in {few} and finds the product's plan "
        f"in {same}; its plan takes at most {worst:.3f} of that one's time."
    )


def _share(result: dict[str, Any]) -> float:
    return result["measured"]["pruned"] / result["measured"]["product"]


def _cells(result: dict[str, Any]) -> list[str]:
    plans, seconds = result["plans"], result["seconds"]

    def by(way: str) -> str:
        if plans["pruned"] == plans[way]:
            return "="
        return f"{seconds['pruned'] / seconds[way]:.3f} of {plans[way]}"

    return [
        result["case"],
        result["mesh"],
        *(str(result["measured"][way]) for way in ("product", "all", "pruned")),
        f"{_share(result):.0%}",
        plans["pruned"],
        by("product"),
        by("all"),
    ]


if __name__ == "__main__":
    sys.exit(main())
