"""Comparisons written by hand: what the table, the JSON and the picture are made of, without running anything."""

import dataclasses
from typing import Any

import numpy as np

from alpa_cfp_bench.case import CFP, COMPOSED, ILP, Case, Effort, Pipeline
from alpa_cfp_bench.checking import Difference
from alpa_cfp_bench.pipelines import PipelineComparison, PipelineOutcome, Stage
from alpa_cfp_bench.programs import Traffic
from alpa_cfp_bench.running import Comparison, Outcome
from alpa_cfp_bench.stage_choice import StageChoice
from alpa_cfp_bench.timing import Samples, ratio
from alpa_cfp_bench.workloads.sizes import TINY

MACHINE: dict[str, Any] = {
    "devices": "8 x cpu",
    "cores": 2,
    "cpu": "a processor",
    "versions": {"jax": "0.10.2", "alpa": "0.2.3"},
    "date": "2026-01-01 00:00 UTC",
}


def samples(milliseconds: float) -> Samples:
    """Four times around a median."""
    times = tuple(milliseconds * factor / 1e3 for factor in (0.88, 1.0, 1.0, 1.12))
    return Samples(times, times)


def outcome(method: str, milliseconds: float, ilp_ms: float = 50.0, **changes: Any) -> Outcome:
    """A method that is right, unless `changes` say otherwise."""
    plain = Outcome(
        method=method,
        planning_s=1.5,
        memory_bytes=9_800_000,
        traffic=(Traffic("all-gather", 2, 2_000_000), Traffic("all-reduce", 3, 500_000)),
        difference=Difference(2e-7, "params/w"),
        is_right=True,
        samples=samples(milliseconds),
        to_ilp=None if method == ILP else ratio(samples(milliseconds), samples(ilp_ms)),
        same_as="",
        predicted_s=None,
        plan=None,
    )
    return dataclasses.replace(plain, **changes)


def comparison(*outcomes: Outcome) -> Comparison:
    """A comparison of them; of CFP and the ILP if none is named."""
    some = outcomes or (outcome(CFP, 40.0, predicted_s=0.0385), outcome(ILP, 50.0))
    return Comparison(Case("gpt", "2x4", TINY), Effort(2, 2), 438_016, 4.2, 1e-4, some, 84, 0)


def wrong(method: str) -> Outcome:
    """A method that gives something else than the serial run."""
    return outcome(
        method, 1.0, difference=Difference(0.25, "params/w"), is_right=False, samples=None, to_ilp=None, same_as=""
    )


def choice(*costs_ms: float) -> StageChoice:
    """A choice of stages of a layer each, of which the first two are chosen where there are two layers."""
    table = np.full((2, 2, 1, 1), np.inf)
    table[0, 0, 0, 0], table[1, 1, 0, 0], table[0, 1, 0, 0] = (cost / 1e3 for cost in costs_ms)
    seconds = {"plan": 3.0, "compile": 0.0, "profile": 4.5, "search": 0.01}
    return StageChoice(seconds, 12, 5, table, ((0, 0, 0, 0), (1, 1, 0, 0)))


def pipeline_outcome(method: str, milliseconds: float, **changes: Any) -> PipelineOutcome:
    """A method that is right, with a pipeline of two stages, unless `changes` say otherwise."""
    stages = tuple(Stage((number,), (1, 2), (2, 1), 2_000_000, (number + 1) / 1e3, None) for number in range(2))
    plain = PipelineOutcome(
        method=method,
        difference=Difference(2e-7, "params/w"),
        is_right=True,
        samples=samples(milliseconds),
        to_ilp=None if method == ILP else ratio(samples(milliseconds), samples(50.0)),
        planning_s=20.0,
        stages=stages,
        choice=choice(1.0, 2.0, 2.5),
        profiled=None if method == ILP else 7,
        predicted_s=0.009,
        schedule="1f1b",
    )
    return dataclasses.replace(plain, **changes)


def pipeline_comparison(*outcomes: PipelineOutcome, **changes: Any) -> PipelineComparison:
    """A comparison of them; of CFP in two ways and the ILP if none is named."""
    composed = pipeline_outcome(COMPOSED, 41.0, choice=choice(1.5, 3.0, 3.75))
    some = outcomes or (pipeline_outcome(CFP, 40.0), composed, pipeline_outcome(ILP, 50.0))
    case, pipeline = Case("gpt", "2x2", TINY, 4), Pipeline(2, None, "1f1b")
    plain = PipelineComparison(case, Effort(4, 1), 438_016, 4.2, 1e-4, some, pipeline, True, 3)
    return dataclasses.replace(plain, **changes)
