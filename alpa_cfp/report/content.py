"""What is said of plans, as plain data for JSON: takes plans, gives what the texts say, with numbers in SI units.

Invariant: equal blocks of equal layers are one entry with a count and all their names.
"""

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_report import Alternative, PlanReport
from alpa_cfp.report import words
from alpa_cfp.report.choices import ordered
from alpa_cfp.report.comparing import differences
from alpa_cfp.report.folding import Folded, chosen, fold, fold_moves
from alpa_cfp.report.totals import blocks_s, moves_s


def of_plan(plan: Plan, *, blocks: Collection[int] | None = None) -> dict[str, Any]:
    """What `explain` says.

    Args:
        plan: The plan.
        blocks: Indices of the blocks to speak of; None for all.
    """
    account = plan.account
    if account is None:
        return _whole(plan)
    segments = fold(account)
    said = [
        {
            "name": segment.title,
            "count": segment.count,
            "blocks": [
                _block(plan, account, segment, position)
                for position in range(len(segment.first))
                if blocks is None or any(copy[position] in blocks for copy in segment.copies)
            ],
        }
        for segment in segments
    ]
    moves = [
        {
            "from": segments[move.first.segment].full_names[move.first.position],
            "to": segments[move.second.segment].full_names[move.second.position],
            "count": move.count,
            "time_s": move.time_s,
            "size_bytes": move.size_bytes,
            "collectives": move.collectives,
        }
        for move in fold_moves(account, segments)
    ]
    return _whole(plan) | {
        "axes": list(account.axis_names),
        "programs_measured": account.programs_measured,
        "time_s": {"blocks": blocks_s(account), "moves": moves_s(account), "start": account.overhead_s},
        "gap_s": account.gap_s,
        "caveats": [asdict(each) for each in account.caveats],
        "tried": [asdict(each) for each in account.tried],
        "segments": [each for each in said if each["blocks"]],
        "moves": moves,
    }


def of_difference(a: Plan, b: Plan) -> dict[str, Any]:
    """What `diff` says."""
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


def _block(plan: Plan, account: PlanReport, segment: Folded, position: int) -> dict[str, Any]:
    indices = [copy[position] for copy in segment.copies]
    block = account.blocks[indices[0]]
    kind = account.kinds[block.kind]
    own = [account.blocks[index] for index in indices]
    return {
        "name": segment.full_names[position],
        "names": [each.name for each in own],
        "contraction": kind.contraction,
        "ops": kind.ops,
        "ops_without_rule": list(kind.without_rule),
        "weights": [list(each.weights) for each in own],
        "state_bytes": [each.state_bytes for each in own],
        "saved_bytes": [each.saved_bytes for each in own],
        "transient_bytes": [each.transient_bytes for each in own],
        "chosen": _alternative(plan, account, chosen(account, block)),
        "alternatives": [_alternative(plan, account, each) for each in ordered(kind, block.chosen)],
    }


def _alternative(plan: Plan, account: PlanReport, each: Alternative) -> dict[str, Any]:
    return {"strategy": words.strategy(each, plan.mesh_shape, account.axis_names), **asdict(each)}


def _optional(side: Any) -> dict[str, Any] | None:
    return None if side is None else asdict(side)
