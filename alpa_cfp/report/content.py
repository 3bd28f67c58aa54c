"""Plans and their differences as plain data for JSON, with the content of the texts and numbers in SI units.

Invariant: equal blocks of equal layers are one entry with a count and all their names.
"""

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_report import Alternative
from alpa_cfp.report import words
from alpa_cfp.report.comparing import Side, differences
from alpa_cfp.report.folding import FoldedBlock, FoldedPlan, fold
from alpa_cfp.report.totals import blocks_s, moves_s


def of_plan(plan: Plan, *, blocks: Collection[int] | None = None) -> dict[str, Any]:
    """The content of `text.explain`.

    Args:
        plan: The plan.
        blocks: Indices of the blocks to include; None for all.
    """
    report = plan.account
    if report is None:
        return _whole(plan)
    folded = FoldedPlan(plan, report, fold(report))
    segments = [
        {
            "name": segment.title,
            "count": segment.count,
            "blocks": [
                _block(folded, block)
                for block in segment.blocks
                if blocks is None or any(index in blocks for index in block.indices)
            ],
        }
        for segment in folded.segments
    ]
    moves = [
        {
            "from": move.first.full_name,
            "to": move.second.full_name,
            "count": move.count,
            "time_s": move.time_s,
            "size_bytes": move.size_bytes,
            "collectives": move.collectives,
        }
        for move in folded.moves()
    ]
    return _whole(plan) | {
        "axes": list(report.axis_names),
        "programs_measured": report.programs_measured,
        "time_s": {"blocks": blocks_s(report), "moves": moves_s(report), "start": report.overhead_s},
        "gap_s": report.gap_s,
        "caveats": [asdict(each) for each in report.caveats],
        "tried": [asdict(each) for each in report.tried],
        "segments": [each for each in segments if each["blocks"]],
        "moves": moves,
        "timeline": None if report.timeline is None else asdict(report.timeline),
    }


def of_difference(a: Plan, b: Plan) -> dict[str, Any]:
    """The content of `comparing.diff`."""
    return {
        "equal": a == b,
        "same_program": a.program == b.program,
        "same_mesh": a.mesh_shape == b.mesh_shape,
        "a": _whole(a),
        "b": _whole(b),
        "blocks": [
            {"name": each.name, "blocks": list(each.blocks), "a": _optional(each.first), "b": _optional(each.second)}
            for each in differences(a, b)
        ],
    }


def _whole(plan: Plan) -> dict[str, Any]:
    return {
        "program": plan.program,
        "mesh_shape": list(plan.mesh_shape),
        "blocks": len(plan.strategies),
        "costs": plan.costs,
        "predicted_s": plan.predicted_s,
        "measured_s": plan.measured_s,
        "memory": asdict(plan.memory),
        "needed_bytes": plan.needed_bytes,
        "has_account": plan.account is not None,
    }


def _block(folded: FoldedPlan, block: FoldedBlock) -> dict[str, Any]:
    kind = folded.kind(block)
    own = [folded.report.blocks[index] for index in block.indices]
    return {
        "name": block.full_name,
        "names": [each.name for each in own],
        "contraction": kind.contraction,
        "ops": kind.ops,
        "ops_without_rule": list(kind.without_rule),
        "weights": [list(each.weights) for each in own],
        "state_bytes": [each.state_bytes for each in own],
        "saved_bytes": [each.saved_bytes for each in own],
        "transient_bytes": [each.transient_bytes for each in own],
        "chosen": _alternative(folded, folded.chosen(block.first)),
        "alternatives": [_alternative(folded, each) for each in words.ordered(kind, own[0].chosen)],
    }


def _alternative(folded: FoldedPlan, each: Alternative) -> dict[str, Any]:
    return {"strategy": folded.strategy(each), **asdict(each)}


def _optional(side: Side | None) -> dict[str, Any] | None:
    return None if side is None else asdict(side)
