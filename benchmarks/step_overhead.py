"""Is a step through `alpa.parallelize` as fast as plain `jax.jit` with the same shardings? Bar: at most 3% slower.

Times, dispatch included and interleaved in random order in one process: alpa's step as it is partitioned by default,
the same with the other partitioner where that covers it, and `jax.jit`'s step; several copies of each, since where the
arrays of one happen to lie changes its time. Two copies of `jax.jit`'s step show what differences mean nothing. Prints
a line a case and writes `results/step_overhead-*`. Invariant: a case whose programs do not all give the same loss is an
error, not a result.
"""

import sys
from collections.abc import Sequence
from itertools import product
from typing import Any

from alpa_cfp.spmd.partition import UnsupportedByShardyError
from alpa_cfp_bench.programs import Program
from alpa_cfp_bench.timing import Ratio, interleave, pool, ratio
from alpa_cfp_bench.workloads.models import MODELS
from alpa_cfp_bench.workloads.shardings import STYLES
from alpa_cfp_bench.workloads.sizes import MESHES
from benchmarks import runner
from benchmarks.programs import Case, alpa_program, collectives, jit_program
from benchmarks.runner import Benchmark, one_row

BAR = 1.03
BAR_FROM_MS = 20.0
LOSS_TOLERANCE = 1e-4
_HEADER = (
    *("case", "jit quiet, ms", "jit median, ms", "spread", "default", "alpa / jit", "other / jit", "jit to itself"),
    *("alpa / jit, median", "alpa / jit, CPU time"),
)

_TEXT = (
    "Time of a training step (state and batch on the mesh, new state back, dispatch included) through "
    "`alpa.parallelize` by that of `jax.jit` with the same shardings and donation, with 95% intervals. Programs are "
    "interleaved in random order in one process. Ratios are those of quiet moments (10th percentile by 10th "
    "percentile); `median` is the median over rounds of the ratio within a round. Both are given because the machine "
    "was shared and the two can differ: the quiet ratio was added after medians of the same programs had changed with "
    "the load of the machine. "
    "`default` is the partitioner that alpa_on_jax chose, `other` the other one; `jit to itself` is one copy of "
    "the `jax.jit` program to another: what that ratio differs from 1 means nothing. CPU time is that of all threads "
    f"of the process together. The bar is {BAR} for steps of {BAR_FROM_MS:.0f} ms or more."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = runner.parser(__doc__, rounds=60, copies=2, seed=0, name="step_overhead")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--meshes", nargs="+", choices=MESHES, default=MESHES, help="data x model")
    parser.add_argument("--styles", nargs="+", choices=STYLES, default=STYLES)
    options = parser.parse_args(argv)
    results = (
        measure(Case(*names), options.rounds, options.copies, options.seed)
        for names in product(options.models, options.meshes, options.styles)
    )
    return Benchmark(options.name, _TEXT, _HEADER, one_row(_cells), _verdict).run(results, options)


def _verdict(results: Sequence[dict[str, Any]]) -> str:
    """By both kinds of ratio, how many cases are within the bar, and how many are so, or are not, beyond doubt."""
    ratios = [Ratio(**result["ratios"]["alpa"]) for result in results if _counts(result)]
    kinds = {
        "quiet moments": [(value.quiet_low, value.quiet, value.quiet_high) for value in ratios],
        "medians": [(value.paired_low, value.paired, value.paired_high) for value in ratios],
    }
    parts = []
    for kind, values in kinds.items():
        within = sum(value <= BAR for _, value, _ in values)
        surely = sum(high <= BAR for *_, high in values)
        beyond = sum(low > BAR for low, *_ in values)
        parts.append(
            f"by {kind} {within} are within {BAR} ({surely} with their whole interval) and {beyond} are beyond it with "
            "their whole interval"
        )
    return f"Of {len(ratios)} cases of {BAR_FROM_MS:.0f} ms or more: {'; '.join(parts)}."


def _counts(result: dict[str, Any]) -> bool:
    return result["samples"]["jit"]["quiet_ms"] >= BAR_FROM_MS


def measure(case: Case, rounds: int, copies: int, seed: int) -> dict[str, Any]:
    """Compile and time one case."""
    groups = {"alpa": [alpa_program(case) for _ in range(copies)]}
    default = groups["alpa"][0].partitioner
    uncovered = ""
    try:
        groups["other"] = [alpa_program(case, "xla" if default == "shardy" else "shardy") for _ in range(copies)]
    except UnsupportedByShardyError as error:
        uncovered = str(error)
    groups["jit"] = [jit_program(case) for _ in range(copies)]
    programs = {f"{name} {i}": program for name, group in groups.items() for i, program in enumerate(group)}
    _check_equal(case, programs)
    single = interleave(programs, rounds, seed=seed)
    samples = {name: pool([single[f"{name} {i}"] for i in range(copies)]) for name in groups}
    ratios = {name: ratio(samples[name], samples["jit"]) for name in groups if name != "jit"}
    if copies > 1:
        ratios["jit to itself"] = ratio(single["jit 1"], single["jit 0"])
    return {
        "case": str(case),
        "default": default,
        "uncovered_by_shardy": uncovered,
        "copies": copies,
        "samples": {name: sample.to_json() for name, sample in samples.items()},
        "ratios": {name: value.to_json() for name, value in ratios.items()},
        "collectives": {name: collectives(group[0].text()) for name, group in groups.items()},
    }


def _check_equal(case: Case, programs: dict[str, Program]) -> None:
    for program in programs.values():
        program()
        program()
    losses = {name: program.loss() for name, program in programs.items()}
    low, high = min(losses.values()), max(losses.values())
    if not high - low <= LOSS_TOLERANCE * abs(high):
        raise RuntimeError(f"{case}: the programs do not compute the same loss: {losses}")


def _cells(result: dict[str, Any]) -> list[str]:
    jit = result["samples"]["jit"]
    ratios = {name: Ratio(**value) for name, value in result["ratios"].items()}
    quiet = {name: value.quiet_text for name, value in ratios.items()}
    return [
        result["case"],
        f"{jit['quiet_ms']:.1f}",
        f"{jit['median_ms']:.1f}",
        f"{jit['spread']:.0%}",
        result["default"],
        quiet["alpa"],
        quiet.get("other", "not covered"),
        quiet.get("jit to itself", ""),
        ratios["alpa"].paired_text,
        f"{ratios['alpa'].cpu:.3f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
