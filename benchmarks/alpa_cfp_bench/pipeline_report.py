"""A comparison of pipelines as JSON, and its plans as a folder: takes a `PipelineComparison`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from alpa_cfp_bench.pipelines import PipelineComparison, PipelineOutcome
from alpa_cfp_bench.report import compared, measured


def to_content(found: PipelineComparison, machine: dict[str, Any], command: str) -> dict[str, Any]:
    """What came out, with where, when and by which command; times in milliseconds, sizes in bytes.

    CFP's plans are left out: `write_plans` writes them.
    """
    on_hosts = "hosts" in machine
    return {
        **compared(found, machine, command),
        "pipeline": asdict(found.pipeline),
        "are_interleaved": found.are_interleaved,
        "profiles_before": found.known,
        "table_agreement": None if found.agreement is None else asdict(found.agreement),
        "methods": {outcome.method: _method(outcome, on_hosts) for outcome in found.outcomes},
    }


def to_json(found: PipelineComparison, machine: dict[str, Any], command: str) -> str:
    """The same as text."""
    return json.dumps(to_content(found, machine, command), indent=1) + "\n"


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


def _method(outcome: PipelineOutcome, on_hosts: bool) -> dict[str, Any]:
    return {
        "planning_s": outcome.planning_s,
        "planning_parts_s": outcome.choice.seconds,
        "stage_programs": outcome.choice.programs,
        "profiled": outcome.profiled,
        "programs_to_choose": outcome.programs,
        **measured(outcome, on_hosts),
        "memory_bytes": outcome.memory_bytes,
        "predicted_ms": _ms(outcome.predicted_s),
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
