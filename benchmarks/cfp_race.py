"""Are CFP's plans good? Steps planned by CFP beside Alpa's ILP, data parallelism, ZeRO-2, ZeRO-3 and Megatron by hand.

Takes models and meshes; runs the training step of each method through `alpa.parallelize`, interleaved in random order
in one process, and compares CFP with each other one within the rounds. Prints a line a method and adds to
`results/cfp_race-*`, case by case, so that the race can be run in pieces. CFP and the ILP both get all shapes of the
mesh. Invariants: the first step of each method gives what the serial run gives; no model leaves the list.
"""

import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from alpa_cfp import CFPOption
from alpa_cfp_bench.case import CFP, ILP, ILP_AGAIN, ILP_GIVEN, Case, Effort
from alpa_cfp_bench.methods import misfit
from alpa_cfp_bench.progress import Progress
from alpa_cfp_bench.report import taken
from alpa_cfp_bench.running import Comparison, compare, steps_of
from alpa_cfp_bench.timing import Ratio, Samples, ratio
from alpa_cfp_bench.workloads.sizes import RACED, SIZES
from benchmarks import reports, runner
from benchmarks.race_results import best_other, cfp_by, geometric_mean
from benchmarks.runner import Benchmark

BAR = 1.02
HEADER = (
    *("case", "method", "median, ms", "spread", "CFP by it", "planning, s", "plan", "MB a device", "collectives"),
)
COMPARED = (CFP, ILP, ILP_GIVEN, "data-parallel", "zero2", "zero3", "megatron", ILP_AGAIN)

_TEXT = (
    "Time of a training step (state and batch on the mesh, new state back, dispatch included) through "
    "`alpa.parallelize` by method, interleaved in random order in one process. CFP and Alpa's ILP plan for all "
    f"shapes of the mesh; of the ILP's plans the fastest in a run before this one counts, `{ILP_GIVEN}` is the ILP "
    f"on the mesh as it is given, with its default options, and `{ILP_AGAIN}` is `{ILP}` compiled once more as a "
    "method of its own: so far two equal programs are apart. `planning` is the time until the step is compiled: of "
    "the ILP with all its settings; of CFP with an empty profile database, or, where it says so, with the profiles "
    "that the case of the same model before has left. Ratios are CFP's time by the other's, over half of the "
    "rounds, with 95% intervals over the {copies} compiled copies of each program; the best of the others (bold) "
    "is chosen by the other half. A method whose compiled program is CFP's own, byte for byte, is marked `=` and "
    "counts as equally fast. `plan` is the ILP's setting, or where CFP's plan comes from: its search, or a plan "
    "made by hand that it ran beside its own; only the former is the search's merit. `collectives` are those of one "
    "step. Methods that cannot run a case are left out."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = runner.parser(
        __doc__, models=list(RACED), meshes=["1x8", "2x4"], rounds=30, copies=4, seed=0, name="cfp_race"
    )
    parser.add_argument("--database", type=Path, help="CFP's profiles (default: a new one for each model)")
    options = parser.parse_args(argv)
    effort = Effort(options.rounds, options.copies, seed=options.seed)
    with tempfile.TemporaryDirectory() as directory:
        # The shapes of a mesh are the same for both: what one case has measured, the next one knows.
        results = (
            measure(model, mesh, options.database or Path(directory) / f"{model}.sqlite", effort)
            for model, mesh in product(options.models, options.meshes)
        )
        text = _TEXT.format(copies=options.copies)
        return Benchmark(options.name, text, HEADER, cells, verdict).run(results, options)


def measure(
    model: str, mesh: str, database: Path, effort: Effort, compared: Sequence[str] = COMPARED
) -> dict[str, Any]:
    """Run one case by those of the methods that can run it.

    Raises:
        RuntimeError: a method gives something else than the serial run.
    """
    case = Case(model, mesh, SIZES[model])
    methods = [method for method in compared if not misfit(case, method)]
    option = CFPOption(database=database, samples=effort.samples, progress=False, logical_mesh_shapes="all")
    with Progress(steps_of(methods, effort)) as progress:
        found = compare(case, methods, effort, option, progress)
    wrong = {each.method: each.difference for each in found.outcomes if not each.is_right}
    if wrong:
        raise RuntimeError(f"{model} {mesh}: not the serial run's: {wrong}")
    methods = _methods(found, effort.seed)
    return {"model": model, "mesh": mesh, "loss": found.loss, "known": found.known, "methods": methods}


def _methods(found: Comparison, seed: int) -> dict[str, dict[str, Any]]:
    """The results of each method as JSON, CFP first."""
    own, same = found.outcomes[0].samples, found.outcomes[0].same_as or CFP
    methods = {}
    for outcome in found.outcomes:
        samples = outcome.samples
        if own is None or samples is None:
            raise ValueError("every method that is right has samples")
        methods[outcome.method] = {
            "planning_s": outcome.planning_s,
            "collectives": sum(each.count for each in outcome.traffic),
            "bytes": outcome.memory_bytes,
            "samples": samples.to_json(),
            "step_ms": [round(seconds * 1e3, 3) for seconds in samples.seconds],
            "plan": None if outcome.plan is None else taken(outcome.plan),
            "settings_ms": {
                name: None if math.isnan(seconds) else round(seconds * 1e3, 3)
                for name, seconds in outcome.settings.items()
            },
            "same_program": same in (outcome.method, outcome.same_as),
            "to_ilp": None if outcome.to_ilp is None else outcome.to_ilp.to_json(),
            "cfp_ratio": _ratio(own, samples, seed, slice(1, None, 2)),
            "cfp_ratio_of_other_rounds": _ratio(own, samples, seed, slice(0, None, 2)),
        }
    return methods


def _ratio(of: Samples, to: Samples, seed: int, rounds: slice) -> dict[str, float]:
    return ratio(of.rounds(rounds), to.rounds(rounds), seed=seed).to_json()


def verdict(rows: Sequence[reports.Row]) -> str:
    """A summary of all cases; each counts with the median of its runs."""

    def of(value: Callable[[Any], float]) -> list[float]:
        return reports.medians(rows, ("model", "mesh"), value)

    worst, to_ilp = of(lambda row: cfp_by(row, best_other(row))), of(lambda row: cfp_by(row, ILP))
    to_given = of(lambda row: cfp_by(row, ILP_GIVEN))
    found = of(lambda row: float(row["methods"][CFP]["plan"]["origin"] == "search"))
    again = of(lambda row: Ratio(**row["methods"][ILP_AGAIN]["to_ilp"]).paired)
    within = sum(each <= BAR for each in worst)
    searched = sum(each > 0.5 for each in found)
    return (
        f"Of {len(worst)} cases CFP is at most {BAR - 1:.0%} slower than the best of the others in {within}; it takes "
        f"{max(worst):.3f} of the best one's time at worst ({geometric_mean(worst):.3f} in the geometric mean), "
        f"{geometric_mean(to_ilp):.3f} of the ILP's in the geometric mean ({min(to_ilp):.3f} to {max(to_ilp):.3f}), "
        f"and {geometric_mean(to_given):.3f} of the ILP's on the mesh as it is given. In {searched} cases the plan is "
        "one that the search found. The ILP's step by that of its own second program: "
        f"{min(again):.3f} to {max(again):.3f}."
    )


def cells(result: dict[str, Any]) -> list[list[str]]:
    """The rows of the table for one case."""
    best = best_other(result)
    rows = []
    for name, method in result["methods"].items():
        by = Ratio(**method["cfp_ratio"])
        mark = "" if name == CFP else "=" if method["same_program"] else by.paired_text
        rows.append(
            [
                f"{result['model']} {result['mesh']}",
                f"**{name}**" if name == best else name,
                f"{method['samples']['median_ms']:.1f}",
                f"{method['samples']['spread']:.0%}",
                mark,
                f"{method['planning_s']:.1f}"
                + f" ({result['known']} profiles)" * (name == CFP and result["known"] > 0),
                _plan(method),
                f"{method['bytes'] / 1e6:.1f}",
                str(method["collectives"]),
            ]
        )
    return rows


def _plan(method: dict[str, Any]) -> str:
    if method["plan"] is not None:
        return f"{method['plan']['mesh']}, {method['plan']['origin']}: {method['plan']['name']}"
    return next(iter(method["settings_ms"]), "")


if __name__ == "__main__":
    sys.exit(main())
