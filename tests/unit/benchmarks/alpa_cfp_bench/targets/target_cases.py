"""A small case for tests of methods on targets: GPT with two layers, on eight H100 that are not here."""

from dataclasses import replace
from functools import cache
from typing import Any

from alpa_cfp_bench.targets import methods
from alpa_cfp_bench.targets.case import TargetCase
from alpa_cfp_bench.targets.methods import Traced
from alpa_cfp_bench.targets.rankings import SCENARIOS, Row
from alpa_cfp_bench.workloads.published import SUITES


def small_case(mesh: tuple[int, ...] = (8,)) -> TargetCase:
    """GPT with two layers and all else small."""
    sizes: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 64, "vocabulary": 512}
    return TargetCase.on(replace(SUITES["gpt"]["350M"], **sizes, intermediate=256), "h100:1x8", mesh)


@cache
def small_step() -> Traced:
    return methods.traced(small_case())


def row(method: str, step_s: float, *, fits: bool = True, **scenarios_s: float) -> Row:
    """The row of a method; named scenarios, with "_" for " ", take other times than the step as modelled."""
    named = {name: scenarios_s.get(name.replace(" ", "_").replace("%", ""), step_s) for name in SCENARIOS}
    return {"case": "a case", "method": method, "step_s": step_s, "fits": fits, "scenarios_s": named, "failure": ""}
