"""An account as values that JSON has, and back.

Takes an `PlanReport`; gives dicts and lists, and reads them strictly. Invariant: what is read back is an equal account,
and equal accounts are equal values.
"""

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar, get_args

from alpa_cfp.plan.plan_report import (
    Alternative,
    BlockReport,
    Caveat,
    Communication,
    CommunicationSource,
    Kind,
    Move,
    PlanReport,
    Purpose,
    Role,
    Source,
    Tried,
)

T = TypeVar("T")


def to_content(account: PlanReport) -> dict[str, Any]:
    """An account as values that JSON has; of what there is nothing to say is left out, as in earlier versions."""
    content = asdict(account)
    for kind in content["kinds"]:
        for alternative in kind["alternatives"]:
            if alternative["communication_source"] == "program":
                del alternative["communication_source"]
    if account.gap_s == 0:
        del content["gap_s"]
    if not account.caveats:
        del content["caveats"]
    return content


def from_content(content: Any) -> PlanReport:
    """What `to_content` gave, after JSON.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    account = PlanReport(
        axis_names=_several(_text, content["axis_names"]),
        kinds=_several(_kind, content["kinds"]),
        blocks=_several(_block, content["blocks"]),
        moves=_several(_move, content["moves"]),
        tried=_several(_tried, content["tried"]),
        overhead_s=_number(content["overhead_s"]),
        programs_measured=_whole(content["programs_measured"]),
        gap_s=_optional(_number)(content.get("gap_s", 0.0)),
        caveats=_several(_caveat, content.get("caveats", [])),
    )
    for block in account.blocks:
        if block.kind >= len(account.kinds) or block.chosen >= len(account.kinds[block.kind].alternatives):
            raise ValueError(f"{block.name!r} has no alternative {block.chosen} of kind {block.kind}")
    for move in account.moves:
        if max(move.first, move.second) >= len(account.blocks):
            raise ValueError(f"nothing moves from block {move.first} to block {move.second}")
    return account


def _kind(content: Any) -> Kind:
    return Kind(
        contraction=_text(content["contraction"]),
        ops=_whole(content["ops"]),
        without_rule=_several(_text, content["without_rule"]),
        alternatives=_several(_alternative, content["alternatives"]),
    )


def _alternative(content: Any) -> Alternative:
    return Alternative(
        roles=_several(_optional(_one_of(Role)), content["roles"]),
        kept=_text(content["kept"]),
        time_s=_optional(_number)(content["time_s"]),
        source=_one_of(Source)(content["source"]),
        failure=_text(content["failure"]),
        state_bytes=_whole(content["state_bytes"]),
        saved_bytes=_whole(content["saved_bytes"]),
        transient_bytes=_whole(content["transient_bytes"]),
        flops=_number(content["flops"]),
        communication=_several(_communication, content["communication"]),
        which=_several(_optional(_text), content["which"]),
        communication_source=_one_of(CommunicationSource)(content.get("communication_source", "program")),
    )


def _communication(content: Any) -> Communication:
    return Communication(
        kind=_text(content["kind"]),
        axes=_several(_whole, content["axes"]),
        size_bytes=_whole(content["size_bytes"]),
        count=_whole(content["count"]),
        # Plans that were made before it was kept do not have it.
        purpose=_optional(_one_of(Purpose))(content.get("purpose")),
    )


def _block(content: Any) -> BlockReport:
    return BlockReport(
        name=_text(content["name"]),
        kind=_whole(content["kind"]),
        chosen=_whole(content["chosen"]),
        weights=_several(_text, content["weights"]),
        segment=_whole(content["segment"]),
        repetition=_whole(content["repetition"]),
        parameters=_several(_whole, content["parameters"]),
        state_bytes=_whole(content["state_bytes"]),
        saved_bytes=_whole(content["saved_bytes"]),
        transient_bytes=_whole(content["transient_bytes"]),
    )


def _move(content: Any) -> Move:
    return Move(
        first=_whole(content["first"]),
        second=_whole(content["second"]),
        time_s=_number(content["time_s"]),
        size_bytes=_whole(content["size_bytes"]),
        collectives=_whole(content["collectives"]),
    )


def _tried(content: Any) -> Tried:
    return Tried(
        name=_text(content["name"]),
        predicted_s=_number(content["predicted_s"]),
        measured_s=_optional(_number)(content["measured_s"]),
        needed_bytes=_optional(_whole)(content["needed_bytes"]),
        collectives=_optional(_whole)(content["collectives"]),
        failure=_text(content["failure"]),
        chosen=_truth(content["chosen"]),
    )


def _caveat(content: Any) -> Caveat:
    return Caveat(text=_text(content["text"]), may_cost=_truth(content["may_cost"]))


def _several(read: Callable[[Any], T], values: Any) -> tuple[T, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is no list")
    return tuple(map(read, values))


def _optional(read: Callable[[Any], T]) -> Callable[[Any], T | None]:
    return lambda value: None if value is None else read(value)


def _one_of(literal: Any) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if value not in get_args(literal):
            raise ValueError(f"{value!r} is none of {', '.join(get_args(literal))}")
        return value

    return read


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r} is no whole number from zero")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no finite number")
    return float(value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value
