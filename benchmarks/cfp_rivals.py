"""What do planners of other papers find? Steps by FlexFlow, Tofu, MaxText's rules, CFP, the ILP and data parallelism.

Takes models of the race and meshes; runs the training step of each method as `cfp_race` does, and adds to
`results/cfp_rivals-*`, case by case. FlexFlow and Tofu search with the costs of their own papers, and once more with
CFP's.
Invariant: the first step of each method gives what the serial run gives.
"""

import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from alpa_cfp_bench.case import (
    CFP,
    DATA_PARALLEL,
    FLEXFLOW,
    FLEXFLOW_OUR_COSTS,
    ILP,
    MAXTEXT,
    TOFU,
    TOFU_OUR_COSTS,
    Effort,
)
from alpa_cfp_bench.workloads.sizes import RACED
from benchmarks import cfp_race, reports, runner
from benchmarks.cfp_race import BAR
from benchmarks.race_results import cfp_by, geometric_mean
from benchmarks.runner import Benchmark

OTHERS = (ILP, DATA_PARALLEL, FLEXFLOW, FLEXFLOW_OUR_COSTS, TOFU, TOFU_OUR_COSTS, MAXTEXT)

_TEXT = (
    "Time of a training step (state and batch on the mesh, new state back, dispatch included) through "
    "`alpa.parallelize` by method, interleaved in random order in one process, {copies} compiled copies of each. CFP "
    "and Alpa's ILP plan for all shapes of the mesh, of the ILP's plans the fastest in a run before this one counts; "
    "the rivals plan for the mesh as it is given, as docs/rivals.md says, and begin with the profiles that are there. "
    "`planning` is the time until the step is compiled. Ratios are CFP's time by the other's, over half of the rounds, "
    "with 95% intervals; a method whose compiled program is CFP's own is marked `=`. Methods that cannot run a case "
    "are left out."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = runner.parser(__doc__, models=list(RACED), meshes=["2x4"], rounds=20, copies=2, seed=0)
    options = parser.parse_args(argv)
    effort = Effort(options.rounds, options.copies, seed=options.seed)
    with tempfile.TemporaryDirectory() as directory:
        results = (
            cfp_race.measure(model, mesh, Path(directory) / f"{model}.sqlite", effort, (CFP, *OTHERS))
            for model, mesh in product(options.models, options.meshes)
        )
        text = _TEXT.format(copies=options.copies)
        return Benchmark("cfp_rivals", text, cfp_race.HEADER, cfp_race.cells, verdict).run(results, options)


def verdict(rows: Sequence[reports.Row]) -> str:
    """What CFP's step takes of each one's."""
    said = []
    for method in OTHERS:
        able = [row for row in rows if method in row["methods"]]
        if not able:
            continue

        def by(row: Any, method: str = method) -> float:
            return cfp_by(row, method)

        ratios = reports.medians(able, ("model", "mesh"), by)
        faster = sum(ratio > BAR for ratio in ratios)
        said.append(
            f"{method} {geometric_mean(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}; {len(ratios)} cases, in "
            f"{faster} of which it is more than {BAR - 1:.0%} faster)"
        )
    return f"CFP's step takes in the geometric mean, of that of: {'; '.join(said)}."


if __name__ == "__main__":
    sys.exit(main())
