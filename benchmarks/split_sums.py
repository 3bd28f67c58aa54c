"""What sums over devices that stay in parts gain: long sequences on devices that are not here, within memory budgets.

Takes models at the width of their published sizes, two layers deep, and sequences; plans each with and without split
sums (`PlanOptions(split_sums=...)`), without a budget of memory and within shares of what the best plan without them
needs. Prints a line a budget and writes `results/split_sums-*`. Invariant: both plans of a line have one budget. It
needs the compiler of the extra `gpu-target` and JAX_PLATFORMS=cpu.
"""

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from alpa_cfp import Plan, PlanOptions, autoshard, target
from alpa_cfp.search import MemoryBudgetError
from alpa_cfp_bench.workloads.published import SUITES
from alpa_cfp_bench.workloads.published_programs import program_of
from benchmarks import reports, runner
from benchmarks.runner import Benchmark, one_row

# A sample for each device of the first axis: fewer than devices, as with sequences that are long.
_LAYERS = 2
_HEADER = (
    "model", "sequence", "target", "budget, GB", "whole sums, ms", "split sums, ms", "split / whole",
    "whole sums, GB", "split sums, GB", "blocks with split sums", "planning, s",
)  # fmt: skip
_TEXT = (
    f"Modelled step of {_LAYERS} layers of LLaMA, without rematerialisation, one sample for each device of the mesh's "
    "first axis, on a machine that is not here: the best plan in which sums over devices are whole, and the best one "
    "in which they may stay in parts, split by samples or positions. `budget`: what a device may hold; where there is "
    "no number, all of its memory; the others are shares of what the plan with whole sums needs by the compiler. `GB`: "
    "what the compiled program needs. `planning`: seconds of both plans; programs that both need are compiled once."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = runner.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["7B", "13B"], help="sizes of LLaMA")
    parser.add_argument("--sequences", nargs="+", type=int, default=[4096, 16384], help="tokens of a sample")
    parser.add_argument("--target", default="h100:1x8", help="the devices")
    parser.add_argument("--mesh", nargs=2, type=int, default=[2, 4], help="the sizes of its axes")
    parser.add_argument("--shares", nargs="+", type=float, default=[0.9, 0.8], help="budgets, as shares")
    parser.add_argument("--costs", default="compile", help="compile, or estimate")
    options = parser.parse_args(argv)
    cases = itertools.product(options.models, options.sequences)
    results = (result for model, sequence in cases for result in _of_case(model, sequence, options))
    return Benchmark("split_sums", _TEXT, _HEADER, one_row(_cells), _verdict).run(results, options)


def _of_case(model: str, sequence: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    rows = options.mesh[0]
    case = replace(
        SUITES["llama"][model], layers=_LAYERS, sequence=sequence, batch=rows, micro_batches=1, mesh=(rows, 1)
    )
    program = program_of(case, remat=False)
    mesh = target(options.target).mesh(options.mesh)

    def planned(budget: int | None, *, split_sums: bool) -> Plan | None:
        option = PlanOptions(
            costs=options.costs, memory_budget_bytes=budget, split_sums=split_sums, progress=False, database=database
        )
        try:
            return autoshard(program.step, mesh, program.state, program.batch, donate_argnums=0, option=option)
        except MemoryBudgetError:
            return None

    with tempfile.TemporaryDirectory() as directory:
        database, needed = Path(directory) / "profiles.sqlite", 0
        for share in (None, *options.shares):
            budget, started = None if share is None else int(share * needed), time.perf_counter()
            whole, parts = planned(budget, split_sums=False), planned(budget, split_sums=True)
            needed = needed or _needed(whole) or mesh.target.chip.memory_bytes
            yield {
                "model": model,
                "sequence": sequence,
                "target": options.target,
                "mesh": list(options.mesh),
                "budget_bytes": budget,
                "whole_s": _seconds(whole),
                "parts_s": _seconds(parts),
                "whole_bytes": _needed(whole),
                "parts_bytes": _needed(parts),
                "split": 0 if parts is None else sum(each.sums_along is not None for each in parts.strategies),
                "blocks": 0 if parts is None else len(parts.strategies),
                "planning_s": time.perf_counter() - started,
                "load_average": os.getloadavg()[0],
            }


def _seconds(plan: Plan | None) -> float | None:
    return None if plan is None else plan.predicted_s if plan.measured_s is None else plan.measured_s


def _needed(plan: Plan | None) -> int | None:
    return None if plan is None else plan.needed_bytes or plan.memory.total


def _cells(result: dict[str, Any]) -> list[str]:
    def scaled(name: str, factor: float, digits: int) -> str:
        return "no plan" if result[name] is None else f"{factor * result[name]:.{digits}f}"

    whole_s, parts_s = result["whole_s"], result["parts_s"]
    return [
        f"LLaMA {result['model']}",
        str(result["sequence"]),
        f"{result['target']} as {'x'.join(map(str, result['mesh']))}",
        "" if result["budget_bytes"] is None else f"{result['budget_bytes'] / 1e9:.2f}",
        scaled("whole_s", 1e3, 1),
        scaled("parts_s", 1e3, 1),
        "" if None in (whole_s, parts_s) else f"{parts_s / whole_s:.3f}",
        scaled("whole_bytes", 1e-9, 2),
        scaled("parts_bytes", 1e-9, 2),
        f"{result['split']} of {result['blocks']}",
        f"{result['planning_s']:.0f}",
    ]


def _verdict(rows: Sequence[reports.Row]) -> str:
    both = [row for row in rows if None not in (row["whole_s"], row["parts_s"])]
    ratios = [row["parts_s"] / row["whole_s"] for row in both]
    only = sum(row["whole_s"] is None and row["parts_s"] is not None for row in rows)
    if not ratios:
        return "No case has both plans."
    return (
        f"{len(ratios)} budgets with both plans: with split sums a step takes {statistics.median(ratios):.3f} of the "
        f"time in the median, {min(ratios):.3f} at best, {max(ratios):.3f} at worst. Budgets that fit with split "
        f"sums only: {only}."
    )


if __name__ == "__main__":
    sys.exit(main())
