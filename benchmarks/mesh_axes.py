"""How planning grows with the number of mesh axes: candidates, programs, choices and seconds.

Takes models and meshes; plans each training step by estimates, without running anything. Prints a line a case and
writes `results/mesh_axes-*`. Invariant: counts depend on the model and the mesh alone; seconds on the machine, too.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from alpa_cfp.candidates import kind_candidates
from alpa_cfp.candidates.block_candidates import BlockCandidates, distinct, find_block_candidates
from alpa_cfp.costs import Rates
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.jit.tracing import trace
from alpa_cfp.planner.options import PlanOptions
from alpa_cfp.planner.plan_candidates import PlanCandidates
from alpa_cfp.search import search
from alpa_cfp.search.limits import Deadline
from alpa_cfp.search.prune import prune
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.search_problem import find_boundaries, make_problem
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import StateSharding
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import SIZES, mesh_shape
from benchmarks import runner
from benchmarks.runner import Benchmark, one_row

MODELS, MESHES = ("gpt", "llama"), ("1x8", "2x4", "2x2x2", "2x2x2x2")
_HEADER = (
    "model", "mesh", "candidates", "strategies", "planner's", "partitioned", "measured at most", "choices", "pairs",
    "pairs by class", "choices left", "planning, s", "search, s",
)  # fmt: skip

_TEXT = (
    "Training steps of the race's sizes, planned by estimates. `candidates`: of all kinds of blocks; `strategies`: "
    "those with state as it is used; `planner's`: those that the planner makes; `partitioned`: programs that are "
    "partitioned for all, as strategies that differ by the order of equal axes share one; `measured at most`: programs "
    "that compute differently; `choices`: of a block, at most; `pairs`: entries of the tables of two blocks if each "
    "pair of choices had one; `pairs by class`: those that are computed; `choices left`: of a block, at most, when the "
    "search begins; `planning`: seconds up to the search."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Plan the cases that the command line names."""
    parser = runner.parser(__doc__, meshes=list(MESHES))
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    options = parser.parse_args(argv)
    results = (result for model in options.models for result in _of_model(model, options.meshes))
    return Benchmark("mesh_axes", _TEXT, _HEADER, one_row(_cells), _verdict).run(results, options)


def _of_model(model: str, meshes: Sequence[str]) -> Iterator[dict[str, Any]]:
    built = build(model, SIZES[model])
    traced = trace(train_step(built, jax.value_and_grad), (built.state, built.batch), {}, 0, "cpu")
    program = AnalysedProgram(traced.module)
    for mesh in meshes:
        yield {"model": model, "mesh": mesh, **measure(program, LogicalMesh(mesh_shape(mesh)))}


def measure(program: AnalysedProgram, mesh: LogicalMesh) -> dict[str, Any]:
    """Counts of one planning, and its seconds."""
    began, partitioned = time.perf_counter(), 0
    original = kind_candidates.partitioned

    def counted(*arguments: Any) -> Any:
        nonlocal partitioned
        partitioned += 1
        return original(*arguments)

    kind_candidates.partitioned = counted
    try:
        blocks = find_block_candidates(program.subprograms, mesh, {})
    finally:
        kind_candidates.partitioned = original
    boundaries = find_boundaries(program.module, program.blocks, blocks)
    costs = CandidateCosts(blocks, boundaries, Rates())
    own = costs.costs()
    problem = make_problem(blocks, boundaries, [[own[i] for i in each] for each in costs.numbers], costs.between_s())
    planned = time.perf_counter()
    options = PlanOptions(costs="estimate")
    made = PlanCandidates(program, mesh, options, lambda: (Rates(), None)).find()
    began_search = time.perf_counter()
    kept = prune(problem, Deadline(), memory=False).problem
    search(problem, None)
    candidates = distinct(blocks)
    return {
        "candidates": len(candidates),
        "strategies": _replicated(blocks),
        "planners": _replicated(made),
        "partitioned": partitioned,
        "measured": len({costs.target(number) for number in range(len(candidates))}),
        "choices": max(variable.choices for variable in problem.variables),
        "pairs": sum(int(np.prod(edge.shape)) for edge in problem.edges),
        "pairs_by_class": sum(edge.table.size for edge in problem.edges),
        "choices_left": max(variable.choices for variable in kept.variables),
        "planning_s": planned - began,
        "search_s": time.perf_counter() - began_search,
    }


def _replicated(blocks: Sequence[BlockCandidates]) -> int:
    """The number of candidates whose state is as it is used."""
    return sum(each.strategy.state_sharding is StateSharding.REPLICATED for each in distinct(blocks))


def _verdict(results: Sequence[dict[str, Any]]) -> str:
    most = max(results, key=lambda result: result["candidates"] / result["partitioned"])
    return (
        f"One program is partitioned for at most {most['candidates'] / most['partitioned']:.1f} candidates "
        f"({most['model']} on {most['mesh']})."
    )


def _cells(result: dict[str, Any]) -> list[str]:
    names = (
        "candidates",
        "strategies",
        "planners",
        "partitioned",
        "measured",
        "choices",
        "pairs",
        "pairs_by_class",
        "choices_left",
    )
    counts = [f"{result[name]:,}" for name in names]
    return [result["model"], result["mesh"], *counts, f"{result['planning_s']:.1f}", f"{result['search_s']:.1f}"]


if __name__ == "__main__":
    sys.exit(main())
