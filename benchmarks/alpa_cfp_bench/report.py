"""A comparison as JSON, of methods or of pipelines, and a pipeline's plans as a folder.

Takes a comparison, the machine and the command; gives text that holds all of it.
"""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from alpa_cfp import Plan
from alpa_cfp_bench.pipelines import PipelineComparison, PipelineOutcome
from alpa_cfp_bench.running import Comparison, Measured, Outcome

FORMAT = 1


def to_json(found: Comparison | PipelineComparison, machine: dict[str, Any], command: str) -> str:
    """Return the comparison as JSON text (see `to_content`)."""
    return json.dumps(to_content(found, machine, command), indent=1) + "\n"


def to_content(found: Comparison | PipelineComparison, machine: dict[str, Any], command: str) -> dict[str, Any]:
    """Return the results with the machine, the date and the command; times in milliseconds, sizes in bytes.

    CFP's plans are left out: a plan has a file format of its own (see `write_plans` for pipelines).
    """
    on_hosts = "hosts" in machine
    content = {
        "format": FORMAT,
        "command": command,
        "machine": machine,
        "case": asdict(found.case),
        "effort": asdict(found.effort),
        "parameters": found.parameters,
        "serial_loss": found.loss,
        "tolerance": found.tolerance,
    }
    if isinstance(found, Comparison):
        content |= {"profiled": found.profiled, "profiles_before": found.known}
        methods = {outcome.method: _method(outcome, on_hosts) for outcome in found.outcomes}
    else:
        content |= {
            "pipeline": asdict(found.pipeline),
            "are_interleaved": found.are_interleaved,
            "profiles_before": found.known,
            "table_agreement": None if found.agreement is None else asdict(found.agreement),
        }
        methods = {outcome.method: _pipeline(outcome, on_hosts) for outcome in found.outcomes}
    return {**content, "methods": methods}


def _measured(outcome: Measured, on_hosts: bool) -> dict[str, Any]:
    """Return the fields of every method: whether it is right, and its times."""
    samples = outcome.samples
    step = samples.to_json() if samples else None
    ratio = outcome.to_ilp.to_json() if outcome.to_ilp else None
    if on_hosts:
        # It is of this process, which computes nothing.
        for numbers, name in ((step, "median_cpu_ms"), (ratio, "cpu")):
            if numbers is not None:
                del numbers[name]
    return {
        "is_right": outcome.is_right,
        # JSON has no infinity, which is what a step that gives no number differs by.
        "difference": min(outcome.difference.relative, 1e300),
        "difference_in": outcome.difference.where,
        "step": step,
        "step_ms": [round(seconds * 1e3, 4) for seconds in samples.seconds] if samples else [],
        "to_alpa_ilp": ratio,
    }


def _method(outcome: Outcome, on_hosts: bool) -> dict[str, Any]:
    return {
        "planning_s": outcome.planning_s,
        **_measured(outcome, on_hosts),
        "same_program_as": outcome.same_as or None,
        "memory_bytes": outcome.memory_bytes,
        "collectives": [asdict(each) for each in outcome.traffic],
        "predicted_ms": _ms(outcome.predicted_s),
        "settings_ms": {
            name: None if math.isnan(seconds) else round(seconds * 1e3, 4) for name, seconds in outcome.settings.items()
        },
        "plan": None if outcome.plan is None else taken(outcome.plan),
    }


def taken(plan: Plan) -> dict[str, Any]:
    """Which of the plans that CFP ran whole it took, on which mesh, and whether its search has found it.

    A plan that is made by hand (a plain one, such as data parallelism) is not the search's merit, unless the search
    finds it, too.
    """
    tried = [] if plan.account is None else [each for each in plan.account.tried if each.chosen]
    name = tried[0].name if tried else None
    return {
        "mesh": "x".join(map(str, plan.mesh_shape)),
        "name": name,
        "origin": None if name is None else "search" if "predicted" in name else "hand-made",
        "measured_ms": _ms(plan.measured_s),
    }


def write_plans(found: PipelineComparison, folder: Path) -> list[Path]:
    """Write the plan of each stage that CFP planned, in words, as a page and as a file.

    Returns:
        The files: `<method>/stage-<number>.txt`, `.html` and `.json` in the folder.
    """
    written = []
    for outcome in found.outcomes:
        for number, stage in enumerate(outcome.stages):
            if stage.plan is None:
                continue
            own = folder / outcome.method
            own.mkdir(parents=True, exist_ok=True)
            texts = {"txt": stage.plan.explain(), "html": stage.plan.report(), "json": stage.plan.to_json()}
            for ending, text in texts.items():
                path = own / f"stage-{number}.{ending}"
                path.write_text(text, encoding="utf-8")
                written.append(path)
    return written


def _pipeline(outcome: PipelineOutcome, on_hosts: bool) -> dict[str, Any]:
    return {
        "planning_s": outcome.planning_s,
        "planning_parts_s": outcome.choice.seconds,
        "stage_programs": outcome.choice.programs,
        "profiled": outcome.profiled,
        "programs_to_choose": outcome.programs,
        **_measured(outcome, on_hosts),
        "memory_bytes": outcome.memory_bytes,
        "predicted_ms": _ms(outcome.predicted_s),
        "schedule": outcome.schedule,
        "stages": [
            {
                "layers": list(stage.layers),
                "submesh": list(stage.submesh),
                "logical_mesh": list(stage.logical_mesh),
                "cost_ms": _ms(stage.cost_s),
                "memory_bytes": stage.memory_bytes,
            }
            for stage in outcome.stages
        ],
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
