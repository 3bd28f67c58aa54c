"""CFP, Alpa's ILP and plans that people write by hand, for models of published sizes on devices that are not here.

Takes cases (model, target, logical mesh) and methods; plans a whole training step by each, compiles it by the target's
own compiler, and models its seconds. Prints a line a method and writes `results/targets-*`. Invariants: nothing runs;
all methods of a case are compiled and modelled alike, each in a process of its own, so that a crash or too long a time
costs one line.

    python -m benchmarks.targets --cases gpt/1.3B@h100:1x8    # pip install 'alpa_cfp[gpu-target]'
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from alpa_cfp import quantities
from alpa_cfp.targets.modelled_program import MODEL
from alpa_cfp_bench.targets.case import TargetCase
from alpa_cfp_bench.targets.comparison import CFP, ILP, METHODS, Limits, rows_of_case
from alpa_cfp_bench.targets.rankings import behind, geometric_mean, rankings, steps_of
from alpa_cfp_bench.workloads import published
from benchmarks import runner
from benchmarks.reports import Row
from benchmarks.runner import Benchmark, one_row

CASES = (
    *(f"gpt/{size}@h100:1x8" for size in ("1.3B", "2.6B", "6.7B")),
    *(f"{model}@h100:1x8" for model in ("llama/7B", "moe/1.3B", "moe/2.4B", "wide_resnet/1B", "wide_resnet/2B")),
    *(f"{model}@h100:4x8" for model in ("gpt/1.3B", "llama/13B", "moe/10B")),
    *("gpt/2.6B@a100-pcie:1x8", "gpt/2.6B@a100:2x8", "gpt/1.3B@v5e:4x4", "gpt/1.3B@v5p:2x2x2"),
)
_TEXT = (
    "A training step of models at their published sizes, planned by each method for devices that are not here: "
    "compiled by the devices' own compiler, its seconds **modelled** from the schedule by published figures of chips "
    f"and links (model {MODEL}); nothing has run. A step is one micro-batch with the optimizer's update, each layer "
    "computed again in the backward pass. `MFU` is the contractions of the step without that, counted, by the devices' "
    "peak (float16, bfloat16; tf32 of Wide-ResNet). `computing`, `communicating` and what of it is `hidden` behind "
    "computing are of one device. `memory` is the compiler's. `planning` is without tracing; CFP's is with all that it "
    "compiles, for all logical meshes of the devices unless told. Alpa's ILP is the fastest that fits of the settings "
    "that were tried (one axis, two with mixed plans, both with `prefer_reduce_scatter`; one axis without), its "
    "planning that of all. Data parallel, ZeRO and Megatron are hand-made plans for the same blocks; propagation is "
    "plain `jax.jit` with the batch split and the state whole."
)
_HEADER = (
    *("case", "method", "step, ms", "MFU", "computing, ms", "communicating, ms", "hidden, ms", "memory, GB", "fits"),
    *("planning, s", "compiling, s", "what"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the methods on the cases that the command line names."""
    parser = runner.parser(__doc__, limit_s=900.0)
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="CASE", help="such as gpt/1.3B@h100:1x8, ...@2x4")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS, metavar="METHOD", help="default: all")
    parser.add_argument("--database", type=Path, help="of CFP's profiles (default: none are known)")
    parser.add_argument("--mesh-given", action="store_true", help="CFP plans for the case's mesh alone, for no other")
    parser.add_argument("--ilp-settings", type=int, help="how many of Alpa's ILP are tried (default: all)")
    options = parser.parse_args(argv)
    try:
        cases = [case_of(text) for text in options.cases]
    except ValueError as error:
        parser.error(str(error))
    shapes = "given" if options.mesh_given else "all"
    limits = Limits(options.limit_s, options.database, shapes, options.ilp_settings)
    results = (row for case in cases for row in rows_of_case(case, options.methods, limits))
    return Benchmark("targets", _TEXT, _HEADER, one_row(_cells), verdict).run(results, options)


def case_of(text: str) -> TargetCase:
    """The case that a text names: "gpt/1.3B@h100:1x8", or with another mesh "gpt/1.3B@h100:1x8@2x4".

    Raises:
        ValueError: there is no such model, or the text has no target.
        TargetError: there is no such target, or mesh of it.
    """
    name, *places = text.split("@")
    suite, _, size = name.partition("/")
    found = published.SUITES.get(suite, {}).get(size)
    if found is None:
        known = ", ".join(f"{suite}/{size}" for suite, cases in published.SUITES.items() for size in cases)
        raise ValueError(f"there is no model {name}; there are {known}")
    if len(places) not in (1, 2):
        raise ValueError(f"{text} is no model@target, nor model@target@mesh")
    mesh = tuple(int(size) for size in places[1].split("x")) if len(places) > 1 else ()
    return TargetCase.on(found, places[0], mesh)


def verdict(rows: Sequence[Row]) -> str:
    """CFP against the others, and the orders of methods."""
    cases: dict[str, dict[str, Row]] = {}
    for row in rows:
        cases.setdefault(row["case"], {})[row["method"]] = row
    words, to_ilp = list[str](), list[float]()
    for case, own in cases.items():
        steps = steps_of(list(own.values()))
        found = behind(steps, CFP)
        if found is not None:
            best, ratio = found
            words.append(f"{case}: CFP takes {ratio:.3f} times as long as {best}.")
        if CFP in steps and ILP in steps:
            to_ilp.append(steps[CFP] / steps[ILP])
        words.append(f"{case}: {rankings(list(own.values()))}")
    if to_ilp:
        words.insert(
            0,
            f"Over {quantities.plural(len(to_ilp), 'case')} where both fit, CFP's step takes "
            f"{geometric_mean(to_ilp):.3f} times as long as that of Alpa's ILP (geometric mean).",
        )
    return " ".join(words)


def _cells(row: Row) -> list[str]:
    said = row.get("said", "")
    planning = f"{row['planning_s']:.1f}" if "planning_s" in row else ""
    if "step_s" not in row:
        return [row["case"], row["method"], *[""] * 7, planning, "", row["failure"].partition("\n")[0] or said]
    return [
        row["case"],
        row["method"],
        f"{row['step_s'] * 1e3:.1f}",
        f"{row['mfu']:.0%}",
        *(f"{row[name] * 1e3:.1f}" for name in ("computing_s", "communicating_s", "hidden_s")),
        f"{row['memory_bytes'] / 1e9:.1f}",
        "yes" if row["fits"] else "no",
        planning,
        f"{row['compile_s']:.1f}",
        said,
    ]


if __name__ == "__main__":
    sys.exit(main())
