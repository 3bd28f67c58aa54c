"""Is the search's own plan the best? Its plan before and after whole plans have run, by the fastest of all.

Takes models and meshes; plans each step without hand-made plans, then runs the first plan of the search, all that it
tried afterwards, the hand-made plans, and others drawn near the best, interleaved in one group. Prints a line a case
and writes `results/cfp_regret-*`. Invariant: no plan is chosen by the samples that judge it.
"""

import argparse
import itertools
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from alpa_cfp.database import Profile
from alpa_cfp.profiling import MeasureOptions
from alpa_cfp.select.baselines import baselines
from alpa_cfp.select.refinement import Refinement
from alpa_cfp_bench.workloads.sizes import RACED, SIZES, mesh_shape
from benchmarks import reports, runner
from benchmarks.cfp_programs import Step, choosing, profiler, step_of
from benchmarks.runner import Benchmark, one_row

_HEADER = (
    "model",
    "mesh",
    "first",
    "after",
    "hand-made",
    "drawn",
    "plans",
    "profiles",
    "planning, s",
    "fastest, ms",
    "load",
)
_MARGIN, _REFINE = 1.5, 3
# Drawn plans are predicted to take at most this many times as long as the best.
_NEAR = 1.25
_TEXT = (
    "Step time of a plan by that of the fastest of all plans that are tried: `first` is the plan of the search before "
    "any whole plan has run, `after` the one that is taken after whole plans have corrected the times of blocks "
    "(`baselines=False`), `hand-made` the best of data parallelism, ZeRO and Megatron-style plans, `drawn` the best of "
    "{drawn} plans that differ from these in some kinds of blocks and are predicted to be within {near} of the best. "
    "All run interleaved, each {samples} times; the fastest is chosen by every other sample, and times are those of "
    "the other samples. `plans` and `profiles` count the programs of planning, `planning` its seconds."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = runner.parser(__doc__, models=list(RACED), meshes=["2x4"], drawn=24, samples=5, judging=30, seed=0)
    options = parser.parse_args(argv)
    text = _TEXT.format(drawn=options.drawn, near=_NEAR, samples=options.judging)
    results = (_case(*names, options) for names in itertools.product(options.models, options.meshes))
    return Benchmark("cfp_regret", text, _HEADER, one_row(_cells), verdict).run(results, options)


def _case(model: str, mesh: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        started = time.perf_counter()
        step = step_of(model, SIZES[model], mesh_shape(mesh))
        found = measure(step, Path(directory) / "profiles.sqlite", options, started)
    return {"model": model, "mesh": mesh, **found, "load_average": os.getloadavg()[0]}


def measure(step: Step, database: Path, options: argparse.Namespace, started: float) -> dict[str, Any]:
    """Plan a step, and time its plan beside others."""
    measured = MeasureOptions(options.samples, seed=options.seed, progress=False)
    with profiler(step.mesh, database, measured) as measuring:
        _, search = choosing(step, measuring, _MARGIN)
        first = search.best(1, None)[0].choices
        refinement = Refinement(
            step.blocks, step.block_candidates, step.mesh, search, measuring.measure, step.planned, lambda _: (),
            _REFINE, options.samples, has_baselines=False,
        )  # fmt: skip
        after = refinement.best(None).solution.choices
        planning_s, profiles = time.perf_counter() - started, search.costs.measured
    origins = {first: "first"} | dict.fromkeys(refinement.tried, "search")
    plans = len(refinement.tried)
    problem = search.problem
    for name, plan in baselines(step.blocks.blocks, step.block_candidates, problem, step.mesh).items():
        origins.setdefault(plan.choices, name)
    limit_s = _NEAR * min(problem.time(after), *(problem.time(choices) for choices in origins))
    drawn, roots, tried = random.Random(options.seed), list(origins), 0
    while list(origins.values()).count("drawn") < options.drawn and tried < 100_000:
        tried += 1
        choices = changed(step, drawn.choice(roots), drawn, most=3)
        if problem.time(choices) <= limit_s:
            origins.setdefault(choices, "drawn")
    together = replace(measured, samples=options.judging, group=len(origins))
    # Another database: all plans are timed side by side, whatever was known of some.
    with profiler(step.mesh, database.with_name("judging.sqlite"), together) as judging:
        timed = judging.measure([step.planned(choices) for choices in origins])
    times = dict(zip(origins, timed, strict=True))
    able = [choices for choices, profile in times.items() if profile.samples_s]
    best = min(able, key=lambda choices: _time_s(times[choices], 0))
    fastest_s = _time_s(times[best], 1)

    def by_fastest(*names: str) -> float:
        chosen = [choices for choices in able if origins[choices] in names]
        return _time_s(times[min(chosen, key=lambda choices: _time_s(times[choices], 0))], 1) / fastest_s

    hand_made = tuple(name for name in origins.values() if name not in ("first", "search", "drawn"))
    return {
        "first": _time_s(times[first], 1) / fastest_s,
        "after": _time_s(times[after], 1) / fastest_s,
        "hand_made": by_fastest(*hand_made) if hand_made else None,
        "drawn": by_fastest("drawn") if "drawn" in origins.values() else None,
        "fastest": origins[best],
        "plans": plans,
        "profiles": profiles,
        "planning_s": planning_s,
        "fastest_s": fastest_s,
        "all": [
            {
                "plan": step.describe(choices),
                "origin": origins[choices],
                "measured_s": _time_s(times[choices], 1),
                "predicted_s": search.predicted(choices).time_s,
            }
            for choices in sorted(able, key=lambda each: _time_s(times[each], 1))
        ],
    }


def _time_s(profile: Profile, half: int) -> float:
    """The time by every other sample, from the first or the second."""
    return replace(profile, samples_s=profile.samples_s[half::2]).lower_half_mean_s


def changed(step: Step, choices: Sequence[int], drawn: random.Random, most: int) -> tuple[int, ...]:
    """A plan with other candidates for some kinds of blocks, up to `most`."""
    counts = {block.kind: len(block.candidates) for block in step.block_candidates}
    kinds = drawn.sample(sorted(counts), drawn.randint(1, min(most, len(counts))))
    new = {kind: drawn.randrange(counts[kind]) for kind in kinds}
    return tuple(new.get(block.kind, choice) for block, choice in zip(step.block_candidates, choices, strict=True))


def verdict(rows: Sequence[reports.Row]) -> str:
    """What the cases amount to, each by the median of its runs."""
    first, after = (
        sorted(reports.medians(rows, ("model", "mesh"), lambda row, name=name: row[name]))
        for name in ("first", "after")
    )
    return (
        f"{len(after)} cases. First plan: {first[len(first) // 2]:.3f} of the fastest in the median, {first[-1]:.3f} "
        f"at worst. After whole plans have run: at most 1.02 in {sum(each <= 1.02 for each in after)}, {after[-1]:.3f} "
        "at worst."
    )


def _cells(result: dict[str, Any]) -> list[str]:
    ratios = ("first", "after", "hand_made", "drawn")
    return [
        result["model"],
        result["mesh"],
        *("" if result[name] is None else f"{result[name]:.3f}" for name in ratios),
        str(result["plans"]),
        str(result["profiles"]),
        f"{result['planning_s']:.1f}",
        f"{result['fastest_s'] * 1e3:.1f}",
        f"{result['load_average']:.1f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
