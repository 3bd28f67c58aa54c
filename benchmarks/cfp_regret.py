"""Is the search's own plan the best? Its plan before and after whole plans have run, by the fastest of all.

Takes models and meshes; plans each step without hand-made plans, then runs the first plan of the search, all that it
tried afterwards, the hand-made plans, and others drawn near the best, interleaved in one group. Prints a line a case
and writes `results/cfp_regret-*`. Invariant: no plan is chosen by the samples that judge it.
"""

import argparse
import contextlib
import itertools
import operator
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.profiling import MeasureOptions, Profiler
from alpa_cfp.select.baselines import baselines
from alpa_cfp.select.refinement import Refinement
from alpa_cfp.select.trial_rounds import TrialRounds
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp_bench.workloads.sizes import RACED, SIZES, mesh_shape
from benchmarks import reports, runner
from benchmarks.cfp_programs import (
    Step,
    choosing,
    copy_speed,
    every_candidate,
    planners_candidates,
    profiler,
    training_module,
)
from benchmarks.judging import NEAR, judge, near_the_top
from benchmarks.runner import Benchmark, one_row

_HEADER = (
    "model",
    "mesh",
    "first",
    "after",
    "hand-made",
    "drawn",
    "rank",
    "error",
    "speed",
    "error at that speed",
    "plans",
    "profiles",
    "planning, s",
    "fastest, ms",
    "load",
)
_MARGIN, _REFINE = 1.5, 3
_TEXT = (
    "Step time of a plan by that of the fastest of all plans that are tried: `first` is the plan of the search before "
    "any whole plan has run, `after` the one that is taken after whole plans have corrected the times of blocks "
    "(`baselines=False`), `hand-made` the best of data parallelism, ZeRO and Megatron-style plans, `drawn` the best of "
    "{drawn} plans that differ from these in some kinds of blocks and are predicted to be within {near} of the best. "
    "All run interleaved, each {samples} times, and the best of them again in four copies, each compiled in a process "
    "of its own, as often; one half of the copies chooses the fastest plan and the other half compares, and the other "
    "way round. `rank` and "
    "`error` say how the predictions after the loop order all plans within {near} of the fastest (Spearman's "
    "correlation), and how far off they are in the median. `speed` says how many times as long the plans that the loop "
    "has run took when they were judged, minutes later on a machine that others use, too, and `error at that speed` is "
    "the error of the predictions times that. `plans` and `profiles` count the programs of planning, `planning` its "
    "seconds."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = runner.parser(__doc__, models=list(RACED), meshes=["2x4"], drawn=24, samples=5, judging=30, seed=0)
    options = parser.parse_args(argv)
    text = _TEXT.format(drawn=options.drawn, near=NEAR, samples=options.judging)
    results = (_case(*names, options) for names in itertools.product(options.models, options.meshes))
    return Benchmark("cfp_regret", text, _HEADER, one_row(_cells), verdict).run(results, options)


def _case(model: str, mesh: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        started = time.perf_counter()
        program = AnalysedProgram(training_module(model, SIZES[model]))
        found = measure(program, LogicalMesh(mesh_shape(mesh)), Path(directory) / "profiles.sqlite", options, started)
    return {"model": model, "mesh": mesh, **found, "load_average": os.getloadavg()[0]}


def measure(
    program: AnalysedProgram, mesh: LogicalMesh, database: Path, options: argparse.Namespace, started: float
) -> dict[str, Any]:
    """Plan a step, and time its plan beside others."""
    measured, cache = MeasureOptions(options.samples, seed=options.seed, progress=False), dict[Any, Any]()
    with profiler(mesh, database, measured) as measuring:
        own = planners_candidates(program, mesh, measuring, cache)
        rates, search = choosing(own, measuring, _MARGIN)
        first = search.best(1, None)[0].choices
        rounds = TrialRounds(
            own.blocks, own.block_candidates, mesh, search, measuring.measure, own.planned, lambda _: (),
            _REFINE, options.samples, has_baselines=False, expect=measuring.expect,
        )  # fmt: skip
        refinement = Refinement(rounds)
        after = refinement.best(None).solution.choices
        planning_s, profiles = time.perf_counter() - started, search.costs.measured
        # What is judged may have candidates that the planner has not made.
        step = every_candidate(program, mesh, cache)
        _, judges_search = choosing(step, measuring, _MARGIN)
        judges_search.measure_candidates(None)
    loops_s = {choices: each.selection_s for choices, each in refinement.tried.items() if each.selection_s}
    origins = {first: "first"} | dict.fromkeys(refinement.tried, "search")
    origins = {_same(step, own, choices): origin for choices, origin in origins.items()}
    first, after = (_same(step, own, choices) for choices in (first, after))
    plans = len(refinement.tried)
    problem = judges_search.problem
    for name, plan in baselines(step.blocks.blocks, step.block_candidates, problem, step.mesh).items():
        origins.setdefault(plan.choices, name)
    limit_s = NEAR * min(problem.time(after), *(problem.time(choices) for choices in origins))
    drawn, roots, tried = random.Random(options.seed), list(origins), 0
    while list(origins.values()).count("drawn") < options.drawn and tried < 100_000:
        tried += 1
        choices = changed(step, drawn.choice(roots), drawn, most=3)
        if problem.time(choices) <= limit_s:
            origins.setdefault(choices, "drawn")
    groups = {name: [each for each in origins if origins[each] == name] for name in dict.fromkeys(origins.values())}
    hand_made = [each for name in groups if name not in ("first", "search", "drawn") for each in groups[name]]

    @contextlib.contextmanager
    def judging() -> Iterator[Profiler]:
        """Another database: all plans are timed side by side, whatever was known of some."""
        with tempfile.TemporaryDirectory() as directory:
            again = Path(directory) / "judging.sqlite"
            copy_speed(step.mesh, database, again)
            with profiler(step.mesh, again, measured) as judging:
                yield judging

    programs = {choices: step.planned(choices) for choices in origins}
    kept = [[first], [after], hand_made, groups.get("drawn", [])]
    judged = judge(judging, programs, options.judging, kept)
    known = {choices: own.choices(step.strategies(choices)) for choices in judged.seconds}
    again_by = [judged.seconds[each] / loops_s[same] for each, same in known.items() if same in loops_s]
    speed = statistics.median(again_by) if again_by else None
    overhead_s = rates.overhead_s(len(step.blocks.graph.parameters) + len(step.blocks.graph.results))
    predicted = {
        choices: search.predicted(same).time_s + overhead_s for choices, same in known.items() if same is not None
    }
    return {
        "first": judged.by_fastest([first]),
        "after": judged.by_fastest([after]),
        "hand_made": judged.by_fastest(hand_made) if hand_made else None,
        "drawn": judged.by_fastest(groups["drawn"]) if "drawn" in groups else None,
        "fastest": origins[judged.fastest],
        **near_the_top(
            ((predicted[each], seconds) for each, seconds in judged.seconds.items() if each in predicted), speed
        ),
        "speed": speed,
        "plans": plans,
        "profiles": profiles,
        "planning_s": planning_s,
        "fastest_s": judged.seconds[judged.fastest],
        "all": [
            {
                "plan": step.describe(choices),
                "origin": origins[choices],
                "is_after": choices == after,
                "measured_s": seconds,
                "halves_s": judged.halves.get(choices),
                "predicted_s": predicted.get(choices),
            }
            for choices, seconds in sorted(judged.seconds.items(), key=operator.itemgetter(1))
        ],
    }


def _same(step: Step, own: Step, choices: Sequence[int]) -> tuple[int, ...]:
    """A plan of the planner's candidates as one of all."""
    found = step.choices(own.strategies(choices))
    assert found is not None
    return found


def changed(step: Step, choices: Sequence[int], drawn: random.Random, most: int) -> tuple[int, ...]:
    """A plan with other candidates for some kinds of blocks, up to `most`."""
    counts = {block.kind: len(block.candidates) for block in step.block_candidates}
    kinds = drawn.sample(sorted(counts), drawn.randint(1, min(most, len(counts))))
    new = {kind: drawn.randrange(counts[kind]) for kind in kinds}
    return tuple(new.get(block.kind, choice) for block, choice in zip(step.block_candidates, choices, strict=True))


def verdict(rows: Sequence[reports.Row]) -> str:
    """What the cases amount to, each by the median of its runs."""

    def of_cases(name: str) -> list[float]:
        some = [row for row in rows if row.get(name) is not None]
        return sorted(reports.medians(some, ("model", "mesh"), lambda row: row[name]))

    first, after, rank, error = map(of_cases, ("first", "after", "rank", "error"))
    near = f" Near the top: rank {statistics.median(rank):.2f}, error {statistics.median(error):.1%}" if rank else ""
    at_speed = of_cases("error_at_speed")
    near += f", {statistics.median(at_speed):.1%} at the speed of judging." if at_speed else "." if near else ""
    return (
        f"{len(after)} cases. First plan: {statistics.median(first):.3f} of the fastest in the median, {first[-1]:.3f} "
        f"at worst. After whole plans have run: at most 1.02 in {sum(each <= 1.02 for each in after)}, {after[-1]:.3f} "
        f"at worst.{near}"
    )


def _cells(result: dict[str, Any]) -> list[str]:
    ratios = ("first", "after", "hand_made", "drawn")
    return [
        result["model"],
        result["mesh"],
        *("" if result[name] is None else f"{result[name]:.3f}" for name in ratios),
        "" if result.get("rank") is None else f"{result['rank']:.2f}",
        f"{result['error']:.1%}" if "error" in result else "",
        "" if result.get("speed") is None else f"{result['speed']:.2f}",
        f"{result['error_at_speed']:.1%}" if "error_at_speed" in result else "",
        str(result["plans"]),
        str(result["profiles"]),
        f"{result['planning_s']:.1f}",
        f"{result['fastest_s'] * 1e3:.1f}",
        f"{result['load_average']:.1f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
