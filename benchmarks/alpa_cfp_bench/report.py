"""A comparison as JSON: takes a `Comparison`, the machine and the command; gives text that holds all of it."""

import json
import math
from dataclasses import asdict
from typing import Any

from alpa_cfp import Plan
from alpa_cfp_bench.running import Compared, Comparison, Measured, Outcome

FORMAT = 1


def to_json(found: Comparison, machine: dict[str, Any], command: str) -> str:
    """What came out, with where, when and by which command; times in milliseconds, sizes in bytes.

    `cfp`'s plan is left out: it has a file format of its own.
    """
    on_hosts = "hosts" in machine
    content = {
        **compared(found, machine, command),
        "profiled": found.profiled,
        "profiles_before": found.known,
        "methods": {outcome.method: _method(outcome, on_hosts) for outcome in found.outcomes},
    }
    return json.dumps(content, indent=1) + "\n"


def compared(found: Compared, machine: dict[str, Any], command: str) -> dict[str, Any]:
    """What is there of every comparison: what ran, where, when and by which command."""
    return {
        "format": FORMAT,
        "command": command,
        "machine": machine,
        "case": asdict(found.case),
        "effort": asdict(found.effort),
        "parameters": found.parameters,
        "serial_loss": found.loss,
        "tolerance": found.tolerance,
    }


def measured(outcome: Measured, on_hosts: bool) -> dict[str, Any]:
    """What is there of every method: whether it is right, and its times."""
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
        **measured(outcome, on_hosts),
        "same_program_as": outcome.same_as or None,
        "memory_bytes": outcome.memory_bytes,
        "collectives": [asdict(each) for each in outcome.traffic],
        "predicted_ms": None if outcome.predicted_s is None else outcome.predicted_s * 1e3,
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
        "measured_ms": None if plan.measured_s is None else plan.measured_s * 1e3,
    }
