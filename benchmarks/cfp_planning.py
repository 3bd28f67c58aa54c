"""Is planning cheap? Programs profiled and seconds of planning with CFP for GPTs of growing depth, cold and warm.

Takes numbers of layers; plans the training step on the first devices of this process with an empty profile database
(cold), then once more (warm). Prints a line a case and writes `results/cfp_planning-*`. Invariant: the second plan is
the first one, byte for byte.
"""

import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from alpa_cfp import PlanOptions
from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.planner.planner import plan as make_plan
from alpa_cfp.planner.request import LocalDevices, PlanRequest
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp_bench.workloads.sizes import mesh_shape
from benchmarks import runner
from benchmarks.abstract_gpt import Sizes, training_step
from benchmarks.runner import Benchmark, one_row

WARM_BAR = 0.1
_HEADER = ("layers", "ops", "blocks", "profiled", "analysis, s", "cold, s", "warm, s", "warm / cold", "load")

_TEXT = (
    "Planning the training step of a GPT (hidden {hidden}, heads {heads}, sequence {sequence}, vocabulary "
    "{vocabulary}, batch {micro_batch}, AdamW) on the {mesh} mesh, `refine={refine}`. `analysis` is the part of it "
    "from StableHLO to blocks, which grows with the depth; `cold` is planning with an empty profile database, `warm` "
    "planning the same once more. `profiled` counts the programs that were compiled and run, `whole` ones included."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = runner.parser(__doc__, layers=[4, 24, 96], mesh="1x8")
    parser.add_argument("--refine", type=int, default=0, help="plans that are compiled whole (default 0: none)")
    options = parser.parse_args(argv)
    sizes = {"hidden": 64, "heads": 8, "sequence": 32, "vocabulary": 256, "micro_batch": 16}
    text = _TEXT.format(mesh=options.mesh, refine=options.refine, **sizes)
    results = (measure(Sizes(layers, **sizes), options.mesh, options.refine) for layers in options.layers)
    return Benchmark("cfp_planning", text, _HEADER, one_row(_cells), _verdict).run(results, options)


def measure(sizes: Sizes, mesh: str, refine: int) -> dict[str, Any]:
    """Plan one program twice."""
    module = training_step(sizes).get_module()
    shape = mesh_shape(mesh)
    request = PlanRequest(LogicalMesh(shape), LocalDevices(tuple(jax.local_devices()[: math.prod(shape)]), shape))
    started = time.perf_counter()
    blocks = find_blocks(read_graph(module.bytecode))
    analysis_s = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as directory:
        options = PlanOptions(database=Path(directory) / "profiles.sqlite", refine=refine, progress=False)
        seconds, plans = [], []
        for _ in range(2):
            started = time.perf_counter()
            plans.append(make_plan(module, request, options).plan)
            seconds.append(time.perf_counter() - started)
        with ProfileDatabase.open(options.database) as database:
            profiled = len(database.keys())
    first, second = (plan.to_json() for plan in plans)
    if first != second:
        raise RuntimeError("the same profiles gave another plan")
    return {
        "layers": sizes.layers,
        "ops": len(blocks.graph.ops),
        "blocks": len(blocks.blocks),
        "profiled": profiled,
        "analysis_s": analysis_s,
        "cold_s": seconds[0],
        "warm_s": seconds[1],
        "load_average": os.getloadavg()[0],
    }


def _verdict(results: Sequence[dict[str, Any]]) -> str:
    profiled = ", ".join(str(result["profiled"]) for result in results)
    warm = sum(result["warm_s"] < WARM_BAR * result["cold_s"] for result in results)
    return f"Programs profiled: {profiled}. Warm planning is under {WARM_BAR:.0%} of cold in {warm} of {len(results)}."


def _cells(result: dict[str, Any]) -> list[str]:
    return [
        *(str(result[name]) for name in ("layers", "ops", "blocks", "profiled")),
        *(f"{result[name]:.2f}" for name in ("analysis_s", "cold_s", "warm_s")),
        f"{result['warm_s'] / result['cold_s']:.1%}",
        f"{result['load_average']:.1f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
