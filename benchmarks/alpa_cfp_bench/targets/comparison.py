"""The comparison of methods on a target: a row for each, with what it planned and what that takes there.

Takes a case and the names of methods; plans the step by each, compiles it for the target, and models its seconds.
Invariants: nothing runs; all methods of a case are compiled and modelled alike, each in a process of its own, so that a
crash or too long a time costs one row; equal programs are compiled once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from alpa_cfp import quantities, target
from alpa_cfp.targets.modelled_program import MODEL
from alpa_cfp_bench.targets.apart import Outcome, apart
from alpa_cfp_bench.targets.case import TargetCase
from alpa_cfp_bench.targets.methods import (
    Planned,
    Traced,
    by_cfp,
    by_hand,
    by_ilp,
    by_propagation,
    ilp_settings,
    program_digest,
    traced,
)
from alpa_cfp_bench.targets.modelled import Modelled, model_flops_utilisation, modelled
from alpa_cfp_bench.targets.rankings import Row

CFP, ILP, PROPAGATION, MEGATRON = "CFP", "Alpa's ILP", "propagation", "Megatron"
_HAND = ("data parallel", "ZeRO-2", "ZeRO-3", MEGATRON)
METHODS = (CFP, ILP, *_HAND, PROPAGATION)
# Of equal plans `select.baselines` has the first only.
_NO_SUCH_PLAN = f"there is no such plan, or it is equal to one before it of {', '.join(_HAND)}"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a comparison may use.

    Attributes:
        limit_s: Of one planning or compiling.
        database: CFP's profiles; None for an empty one for each case.
        shapes: The logical meshes that CFP plans for, of those of the devices.
        ilp_settings: How many settings of Alpa's ILP are tried; None for all.
        memory_budget_bytes: What a device may hold; None for what a program can have of the chip's memory.
    """

    limit_s: float
    database: Path | None = None
    shapes: Literal["given", "all"] = "all"
    ilp_settings: int | None = None
    memory_budget_bytes: int | None = None

    def budget_bytes(self, case: TargetCase) -> int:
        """What a device may hold: the budget, and no more than a program can have there."""
        memory_bytes = target(case.target).chip.memory_bytes
        return memory_bytes if self.memory_budget_bytes is None else min(self.memory_budget_bytes, memory_bytes)


def rows_of_case(
    case: TargetCase, methods: Sequence[str], limits: Limits, begin: Callable[[str], None] = lambda method: None
) -> Iterator[Row]:
    """A row for each method.

    Args:
        case: What is planned.
        methods: Some of `METHODS`.
        limits: What may be used.
        begin: Called before each method is planned or compiled, with its name.
    """
    step = apart(traced, case, limit_s=limits.limit_s)
    if step.value is None:
        yield from (_row(case, None, method, Outcome(None, step.failure), None, limits) for method in methods)
        return
    known = dict[str, Outcome[Modelled]]()
    for method, plans in _plans(case, step.value, methods, limits, begin):
        results = [(plan, _modelled(case, plan, known, limits)) for plan in plans]
        plan, outcome = min(results, key=lambda each: _rank(limits.budget_bytes(case), each[1]))
        row = _row(case, step.value, method, plan, outcome, limits)
        if len(results) > 1:
            row["planning_s"] = sum(each.value.planning_s for each, _ in results if each.value is not None)
            row["settings"] = [_setting(each, found) for each, found in results]
        yield row


def _plans(
    case: TargetCase, step: Traced, methods: Sequence[str], limits: Limits, begin: Callable[[str], None]
) -> Iterator[tuple[str, list[Outcome[Planned]]]]:
    """The plans of each method, of which the fastest counts."""
    limit_s, wanted = limits.limit_s, target(case.target)
    if CFP in methods:
        begin(CFP)
        budget_bytes = limits.budget_bytes(case)
        yield CFP, [apart(by_cfp, case, step, limits.database, limits.shapes, budget_bytes, limit_s=limit_s)]
    if ILP in methods:
        begin(ILP)
        settings = ilp_settings(wanted.num_devices, wanted.hosts)[: limits.ilp_settings]
        yield ILP, [apart(by_ilp, case, step, *setting, limit_s=limit_s) for setting in settings]
    hand = [name for name in _HAND if name in methods]
    if MEGATRON in hand and len(case.mesh) > 1:
        hand.append(f"Megatron along axis {len(case.mesh) - 1}, data parallel")
    if hand:
        begin(hand[0])
        found = apart(by_hand, case, step, hand, limit_s=limit_s)
        for name in hand:
            if name != hand[0]:
                begin(name)
            plan = (found.value or {}).get(name)
            yield name, [Outcome(plan, found.failure or _NO_SUCH_PLAN)]
    if PROPAGATION in methods:
        begin(PROPAGATION)
        samples, devices = case.model.samples, wanted.num_devices
        if samples % devices:
            yield PROPAGATION, [Outcome(None, f"{samples} samples cannot be split into {devices} equal parts")]
        else:
            yield PROPAGATION, [apart(by_propagation, case, step, limit_s=limit_s)]


def _modelled(
    case: TargetCase, plan: Outcome[Planned], known: dict[str, Outcome[Modelled]], limits: Limits
) -> Outcome[Modelled]:
    """What the compiler and the model say of a plan; equal programs are compiled once."""
    if plan.value is None:
        return Outcome(None, plan.failure)
    digest = program_digest(plan.value)
    if digest not in known:
        known[digest] = apart(modelled, plan.value.module, case.target, limit_s=limits.limit_s)
    return known[digest]


def _rank(budget_bytes: int, outcome: Outcome[Modelled]) -> tuple[bool, bool, float]:
    """Plans that fit before others, then the fastest."""
    found = outcome.value
    if found is None:
        return True, True, 0.0
    return False, found.memory_bytes > budget_bytes, found.step_s


def _setting(plan: Outcome[Planned], outcome: Outcome[Modelled]) -> dict[str, Any]:
    """What came of one setting of a method."""
    found = {"failure": outcome.failure} if outcome.value is None else outcome.value.to_json()
    return found if plan.value is None else found | {"setting": plan.value.said, "planning_s": plan.value.planning_s}


def _row(
    case: TargetCase,
    step: Traced | None,
    method: str,
    plan: Outcome[Planned],
    outcome: Outcome[Modelled] | None,
    limits: Limits,
) -> Row:
    row: Row = {
        "case": str(case),
        "suite": case.suite,
        "name": case.name,
        "target": target(case.target).name,
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
        row["program"] = program_digest(plan.value)
    if step is not None and outcome is not None and outcome.value is not None:
        found = outcome.value
        row |= found.to_json()
        row["mfu"] = model_flops_utilisation(case, step.flops, found.step_s)
        row["fits"] = found.memory_bytes <= limits.budget_bytes(case)
    return row
