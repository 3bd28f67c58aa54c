"""CFP, Alpa's ILP and plans that people write by hand, for models of published sizes on devices that are not here.

Takes cases (model, target, logical mesh) and methods; plans a whole training step by each, compiles it by the target's
own compiler, and models its seconds. Prints a line a method and writes `results/targets-*`. Invariants: nothing runs;
all methods of a case are compiled and modelled alike, each in a process of its own, so that a crash or too long a time
costs one line.

    python -m benchmarks.targets --cases gpt/1.3B@h100:1x8    # pip install 'alpa_cfp[gpu-target]'
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from alpa_cfp import quantities, target
from alpa_cfp.targets.modelled_program import MODEL
from benchmarks import runner
from benchmarks.reports import Row
from benchmarks.runner import Benchmark, one_row
from benchmarks.target_methods import (
    Case,
    Modelled,
    Outcome,
    Planned,
    Traced,
    apart,
    by_cfp,
    by_hand,
    by_ilp,
    by_propagation,
    ilp_settings,
    model_flops_utilisation,
    modelled,
    program_digest,
    traced,
)
from benchmarks.target_rankings import behind, geometric_mean, rankings, steps_of

CFP, ILP, PROPAGATION = "CFP", "Alpa's ILP", "propagation"
_HAND = ("data parallel", "ZeRO-2", "ZeRO-3", "Megatron")
METHODS = (CFP, ILP, *_HAND, PROPAGATION)
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


@dataclass(frozen=True, slots=True)
class Limits:
    """What a comparison may use.

    Attributes:
        limit_s: Of one planning or compiling.
        database: CFP's profiles; None for an empty one for each case.
        shapes: The logical meshes that CFP plans for, of those of the devices.
        ilp_settings: How many settings of Alpa's ILP are tried; None for all.
    """

    limit_s: float
    database: Path | None = None
    shapes: Literal["given", "all"] = "all"
    ilp_settings: int | None = None


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
        cases = [Case.of(text) for text in options.cases]
    except ValueError as error:
        parser.error(str(error))
    shapes = "given" if options.mesh_given else "all"
    limits = Limits(options.limit_s, options.database, shapes, options.ilp_settings)
    results = (row for case in cases for row in rows_of_case(case, options.methods, limits))
    return Benchmark("targets", _TEXT, _HEADER, one_row(_cells), verdict).run(results, options)


def rows_of_case(case: Case, methods: Sequence[str], limits: Limits) -> Iterator[Row]:
    """A row for each method."""
    step = apart(traced, case, limit_s=limits.limit_s)
    if step.value is None:
        yield from (_row(case, None, method, Outcome(None, step.failure), None) for method in methods)
        return
    known = dict[str, Outcome[Modelled]]()
    for method, plans in _plans(case, step.value, methods, limits):
        results = [(plan, _modelled(case, plan, known, limits)) for plan in plans]
        plan, outcome = min(results, key=lambda each: _rank(case, each[1]))
        row = _row(case, step.value, method, plan, outcome)
        if len(results) > 1:
            row["planning_s"] = sum(each.value.planning_s for each, _ in results if each.value is not None)
            row["settings"] = [_setting(each, found) for each, found in results]
        yield row


def _plans(
    case: Case, step: Traced, methods: Sequence[str], limits: Limits
) -> Iterator[tuple[str, list[Outcome[Planned]]]]:
    """The plans of each method, of which the fastest counts."""
    limit_s, wanted = limits.limit_s, target(case.target)
    if CFP in methods:
        yield CFP, [apart(by_cfp, case, step, limits.database, limits.shapes, limit_s=limit_s)]
    if ILP in methods:
        settings = ilp_settings(wanted.num_devices, wanted.hosts)[: limits.ilp_settings]
        yield ILP, [apart(by_ilp, case, step, *setting, limit_s=limit_s) for setting in settings]
    hand = [name for name in _HAND if name in methods]
    if "Megatron" in hand and len(case.mesh) > 1:
        hand.append(f"Megatron along axis {len(case.mesh) - 1}, data parallel")
    if hand:
        found = apart(by_hand, case, step, hand, limit_s=limit_s)
        for name in hand:
            plan = (found.value or {}).get(name)
            yield name, [Outcome(plan, found.failure or "no such plan, or it is one of those above")]
    if PROPAGATION in methods:
        yield PROPAGATION, [apart(by_propagation, case, step, limit_s=limit_s)]


def _modelled(
    case: Case, plan: Outcome[Planned], known: dict[str, Outcome[Modelled]], limits: Limits
) -> Outcome[Modelled]:
    """What the compiler and the model say of a plan; equal programs are compiled once."""
    if plan.value is None:
        return Outcome(None, plan.failure)
    digest = program_digest(plan.value)
    if digest not in known:
        known[digest] = apart(modelled, plan.value.module, case.target, limit_s=limits.limit_s)
    return known[digest]


def _rank(case: Case, outcome: Outcome[Modelled]) -> tuple[bool, bool, float]:
    """Plans that fit before others, then the fastest."""
    found = outcome.value
    if found is None:
        return True, True, 0.0
    return False, found.memory_bytes > target(case.target).chip.memory_bytes, found.step_s


def _setting(plan: Outcome[Planned], outcome: Outcome[Modelled]) -> dict[str, Any]:
    """What came of one setting of a method."""
    found = {"failure": outcome.failure} if outcome.value is None else outcome.value.to_json()
    return found if plan.value is None else found | {"setting": plan.value.said, "planning_s": plan.value.planning_s}


def _row(
    case: Case, step: Traced | None, method: str, plan: Outcome[Planned], outcome: Outcome[Modelled] | None
) -> Row:
    row: Row = {
        "case": str(case),
        "suite": case.model.suite,
        "name": case.model.name,
        "target": case.target,
        "mesh": quantities.shape(case.mesh),
        "samples": case.model.samples,
        "method": method,
        "model": MODEL,
        "failure": plan.failure if outcome is None else outcome.failure,
        "fits": False,
    }
    if step is not None:
        row |= {"parameters": step.parameters, "flops": step.flops, "trace_s": step.trace_s}
    if plan.value is not None:
        row |= {"planning_s": plan.value.planning_s, "said": plan.value.said}
    if step is not None and outcome is not None and outcome.value is not None:
        found = outcome.value
        row |= found.to_json()
        row["mfu"] = model_flops_utilisation(case, step.flops, found.step_s)
        row["fits"] = found.memory_bytes <= target(case.target).chip.memory_bytes
    return row


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
