"""The order of methods, and whether it would be another one if links or chips were faster or slower than modelled.

Takes compiled programs and factors of the model's seconds; gives the step in each of `SCENARIOS`, and from a case's
rows the orders of its methods. Programs are walked again, and not compiled or planned again: CFP would plan otherwise
for other links. Invariant: a method that does not fit the chip has no place in an order.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from alpa_cfp.targets.computing import Work, computing_work, copying_s
from alpa_cfp.targets.hlo_text import Computation, Instruction, ScheduledModule, read_scheduled
from alpa_cfp.targets.interconnect import collective_s
from alpa_cfp.targets.links import interconnect_of
from alpa_cfp.targets.target import Target
from alpa_cfp.targets.timeline import CollectiveOp, walk
from alpa_cfp.targets.topology import Compiled

# What came of a method: at least "method", "fits" and, if it was modelled, "step_s" and "scenarios_s".
Row = dict[str, Any]

# Methods that differ by less have no order.
TIE = 0.01


@dataclass(frozen=True, slots=True)
class Factors:
    """How many times the model's seconds computing and communicating take."""

    computing: float = 1.0
    communicating: float = 1.0


SCENARIOS: Mapping[str, Factors] = {
    "communication 25% cheaper": Factors(communicating=0.75),
    "communication 25% dearer": Factors(communicating=1.25),
    "computation 25% faster": Factors(computing=0.75),
    "computation 25% slower": Factors(computing=1.25),
}


def scaled_s(compiled: Sequence[Compiled], target: Target, factors: Factors) -> float:
    """Seconds of programs that run one after the other, where their parts take so many times as long as modelled.

    Args:
        compiled: The programs.
        target: What they were compiled for.
        factors: The factors; with those of 1 it is the model itself (`modelled_program.timeline_of`).
    """
    chip, links = target.chip, interconnect_of(target)

    def work_of(module: ScheduledModule, computation: Computation, instruction: Instruction) -> Work:
        work = computing_work(module, computation, instruction, chip)
        return replace(work, seconds=factors.computing * work.seconds)

    def communicating_s(op: CollectiveOp) -> float:
        return factors.communicating * collective_s(op.kind, op.operand_bytes, op.groups, links)

    copied = partial(copying_s, chip=chip)
    return sum(
        walk(read_scheduled(each.text), work_of, communicating_s, lambda copy: factors.computing * copied(copy)).step_s
        for each in compiled
    )


def steps_of(rows: Sequence[Row], scenario: str = "") -> dict[str, float]:
    """The seconds of each method that fits the chip, by name, as modelled or in a scenario."""
    return {
        row["method"]: row["scenarios_s"][scenario] if scenario else row["step_s"]
        for row in rows
        if row.get("step_s") and row["fits"]
    }


def order_of(steps_s: Mapping[str, float]) -> list[str]:
    """The methods, the fastest first."""
    return sorted(steps_s, key=lambda name: steps_s[name])


def swaps(before: Mapping[str, float], after: Mapping[str, float]) -> list[tuple[str, str]]:
    """The pairs of methods of which the first is faster before and slower after, each by more than `TIE`."""
    found = []
    for first, second in itertools.permutations(before, 2):
        was, now = before[second] / before[first], after[second] / after[first]
        if was > 1 + TIE and 1 / now > 1 + TIE:
            found.append((first, second))
    return found


def behind(steps_s: Mapping[str, float], method: str) -> tuple[str, float] | None:
    """The best other method, and how many times as long as it `method` takes; None where there is none to compare."""
    others = [name for name in order_of(steps_s) if name != method]
    if method not in steps_s or not others:
        return None
    return others[0], steps_s[method] / steps_s[others[0]]


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of at least one ratio."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def _in_words(steps_s: Mapping[str, float]) -> str:
    """The methods, the fastest first: "a < b ~ c", of which the last two differ by no more than `TIE`."""
    words, before_s = "", 0.0
    for name in order_of(steps_s):
        sign = (" < " if steps_s[name] > (1 + TIE) * before_s else " ~ ") if words else ""
        words, before_s = f"{words}{sign}{name}", steps_s[name]
    return words


def rankings(rows: Sequence[Row]) -> str:
    """Sentences on the order of one case's methods in all scenarios."""
    steps = steps_of(rows)
    if not steps:
        return "No method fits."
    best, words = order_of(steps)[0], list[str]()
    for scenario in SCENARIOS:
        other = steps_of(rows, scenario)
        changed = swaps(steps, other)
        winner = order_of(other)[0]
        if changed or other[winner] * (1 + TIE) < other[best]:
            pairs = ", ".join(f"{second} passes {first}" for first, second in changed)
            words.append(f"with {scenario} {pairs}" if pairs else f"with {scenario} {winner} is first")
    order = _in_words(steps)
    return f"{order}; {'; '.join(words)}." if words else f"{order}, in all scenarios."
