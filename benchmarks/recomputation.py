"""What recomputation gains within budgets of memory: shardings alone, recomputation alone, and both chosen together.

Takes models and budgets, as shares of what data parallelism needs by its compiled program. For each budget: the fastest
plan over shardings (`PlanOptions(recompute=False)`), data parallelism with the least recomputation that fits, and the
fastest plan over both. Prints a line a budget and writes `results/recomputation-*`. Invariant: all three have one
budget, and memory is that of compiled programs. It runs on 8 virtual CPU devices.
"""

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from alpa_cfp import Plan, PlanOptions, autoshard
from alpa_cfp.jit.meshes import request_for
from alpa_cfp.jit.recomputation import forms, recomputing, units_of
from alpa_cfp.jit.tracing import trace
from alpa_cfp.planner.planner import plan
from alpa_cfp.search import MemoryBudgetError
from alpa_cfp.select.baselines import DATA_PARALLEL
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import abstract
from alpa_cfp_bench.workloads.sizes import SIZES, mesh_axes, mesh_shape
from benchmarks import reports, runner
from benchmarks.runner import Benchmark, one_row

_HEADER = (
    "model", "layers", "batch", "mesh", "budget", "MB", "shardings alone, ms", "recomputation alone, ms", "both, ms",
    "shardings alone, MB", "recomputation alone, MB", "both, MB", "both computes again", "planning, s",
)  # fmt: skip
_TEXT = (
    "Steps within budgets of memory, measured. `budget`: the share of what data parallelism needs by its compiled "
    "program. `shardings alone`: the fastest plan without recomputation. `recomputation alone`: data parallelism with "
    "the parts of the forward pass computed again that fit with the fastest step. `both`: the fastest plan over both. "
    "`MB`: what a device holds by the compiled program; `planning`: seconds of the plan of both, by profiles of the "
    "plans before it."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = runner.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["gpt", "llama", "wide_resnet"], help="names of workloads")
    parser.add_argument("--layers", type=int, default=6, help="of those models that have layers")
    parser.add_argument("--batch", type=int, default=None, help="samples; by default the usual ones of a model")
    parser.add_argument("--meshes", nargs="+", default=["8"], help="such as 2x4")
    parser.add_argument("--shares", nargs="+", type=float, default=[0.9, 0.7, 0.5], help="budgets, as shares")
    parser.add_argument("--database", type=Path, default=None, help="profiles to go on from; none by default")
    parser.add_argument("--refine", type=int, default=1, help="plans that are timed at first")
    options = parser.parse_args(argv)
    logging.getLogger("alpa_cfp").setLevel(logging.ERROR)
    cases = ((model, mesh) for model in options.models for mesh in options.meshes)
    results = (result for model, mesh in cases for result in _of_case(model, mesh, options))
    return Benchmark("recomputation", _TEXT, _HEADER, one_row(_cells), _verdict).run(results, options)


def _of_case(model: str, mesh_name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    size = replace(SIZES[model], layers=options.layers)
    size = size if options.batch is None else replace(size, batch=options.batch)
    built = abstract(model, size)
    step, shape = train_step(built, jax.value_and_grad), mesh_shape(mesh_name)
    mesh = jax.make_mesh(shape, mesh_axes(shape))
    with tempfile.TemporaryDirectory() as directory:
        database = options.database or Path(directory) / "profiles.sqlite"
        option = PlanOptions(database=database, refine=options.refine, progress=False)
        program = trace(step, (built.state, built.batch), {}, 0, "cpu")
        again = [(), *forms(units_of(program))]

        def data_parallel(number: int) -> tuple[float, int] | None:
            """Seconds and bytes of data parallelism with a form of recomputation."""
            made = plan(recomputing(program, again[number]).module, request_for(mesh), option).plan
            assert made.account is not None
            found = (each for each in made.account.tried if DATA_PARALLEL in each.name)
            return next(((each.measured_s, each.needed_bytes) for each in found if not each.failure), None)  # pyright: ignore[reportReturnType]

        alone = [found for number in range(len(again)) if (found := data_parallel(number)) is not None]
        needed = alone[0][1]

        def planned(budget: int, recompute: bool | None) -> Plan | None:
            within = replace(option, memory_budget_bytes=budget, recompute=recompute)
            try:
                return autoshard(step, mesh, built.state, built.batch, donate_argnums=0, option=within)
            except MemoryBudgetError:
                return None

        for share in options.shares:
            budget = int(share * needed)
            shardings = planned(budget, recompute=False)
            started = time.perf_counter()
            both = planned(budget, recompute=None)
            seconds = time.perf_counter() - started
            fitting = min((each for each in alone if each[1] <= budget), default=(None, None))
            signature = None if both is None else both.signature
            yield {
                "model": model,
                "layers": options.layers,
                "batch": size.batch,
                "mesh": list(shape),
                "share": share,
                "budget_bytes": budget,
                "shardings_s": _seconds(shardings),
                "recomputation_s": fitting[0],
                "both_s": _seconds(both),
                "shardings_bytes": None if shardings is None else shardings.needed_bytes,
                "recomputation_bytes": fitting[1],
                "both_bytes": None if both is None else both.needed_bytes,
                "recomputed": 0 if signature is None else len(signature.recomputed),
                "keeps_products": signature is not None and any(part.keeps_products for part in signature.recomputed),
                "planning_s": seconds,
                "load_average": os.getloadavg()[0],
            }


def _seconds(of: Plan | None) -> float | None:
    return None if of is None else of.measured_s


def _cells(result: dict[str, Any]) -> list[str]:
    def scaled(name: str, factor: float, digits: int) -> str:
        return "no plan" if result[name] is None else f"{factor * result[name]:.{digits}f}"

    kept = " without products" if result["keeps_products"] else ""
    names = ("shardings", "recomputation", "both")
    return [
        result["model"],
        str(result["layers"]),
        str(result["batch"]),
        "x".join(map(str, result["mesh"])),
        f"{result['share']:.0%}",
        scaled("budget_bytes", 1e-6, 1),
        *(scaled(f"{name}_s", 1e3, 1) for name in names),
        *(scaled(f"{name}_bytes", 1e-6, 1) for name in names),
        f"{result['recomputed']} parts{kept}" if result["recomputed"] else "nothing",
        f"{result['planning_s']:.0f}",
    ]


def _verdict(rows: Sequence[reports.Row]) -> str:
    fits = [row for row in rows if row["both_bytes"] is not None]
    within = sum(row["both_bytes"] <= row["budget_bytes"] for row in fits)
    said = [f"{len(fits)} of {len(rows)} budgets have a plan, {within} of these within it by the compiled program."]
    for name, words in (("shardings", "shardings alone"), ("recomputation", "recomputation alone")):
        ratios = [row["both_s"] / row[f"{name}_s"] for row in fits if row[f"{name}_s"] and row["both_s"]]
        if ratios:
            said.append(
                f"Of the time of {words}, both take {statistics.median(ratios):.3f} in the median of {len(ratios)} "
                f"budgets, {min(ratios):.3f} at best, {max(ratios):.3f} at worst; "
                f"{sum(row[f'{name}_s'] is None for row in fits)} budgets fit with both only."
            )
    return " ".join(said)


if __name__ == "__main__":
    sys.exit(main())
