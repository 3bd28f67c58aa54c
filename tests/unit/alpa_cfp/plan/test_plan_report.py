"""A plan report is kept as JSON: reading it back gives an equal report, and a damaged one is refused."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from alpa_cfp.codec import decode, encode
from alpa_cfp.plan.plan_report import (
    Alternative,
    BlockKind,
    BlockReport,
    Caveat,
    Communication,
    Move,
    PlanReport,
    TriedPlan,
)
from unit.alpa_cfp.report.drawn import plan_reports
from unit.alpa_cfp.report.reports import gpt

ALTERNATIVE = Alternative(
    ("samples", None), "as used", None, "measured", "crashed", 1, 2, 3, 4.0, (Communication("all-reduce", (0,), 8, 2),)
)
REPORT = PlanReport(
    axis_names=("data", "model"),
    kinds=(BlockKind("dot 2x2 by 2x2", 3, ("sort",), (ALTERNATIVE,)),),
    blocks=(BlockReport("layer", 0, 0, ("w",), 0), BlockReport("layer (2)", 0, 0, ("w",), 0, 1)),
    moves=(Move(0, 1, 0.1, 64, 1),),
    tried=(TriedPlan("best predicted", 0.2, None, None, 0, "crashed: it did", True),),
    overhead_s=0.0,
    programs_measured=3,
)


@given(plan_reports())
def test_a_report_that_is_read_back_is_an_equal_one(report: PlanReport) -> None:
    assert decode(PlanReport, json.loads(json.dumps(encode(report)))) == report


def test_a_report_without_a_timeline_is_written_as_by_earlier_versions() -> None:
    assert "timeline" not in encode(REPORT)
    assert decode(PlanReport, encode(REPORT)).timeline is None


def _damaged(path: tuple[Any, ...], value: Any) -> Any:
    content = json.loads(json.dumps(encode(REPORT)))
    *before, last = path
    inner = content
    for step in before:
        inner = inner[step]
    inner[last] = value
    return content


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("kinds",), {}),
        (("blocks",), None),
        (("axis_names", 0), 1),
        (("overhead_s",), "0"),
        (("overhead_s",), float("nan")),
        (("overhead_s",), 10**400),
        (("programs_measured",), -1),
        (("kinds", 0, "alternatives", 0, "roles", 0), "diagonal"),
        (("kinds", 0, "alternatives", 0, "source"), "guessed"),
        (("kinds", 0, "alternatives", 0, "communication_source"), "guessed"),
        (("kinds", 0, "alternatives", 0, "time_s"), True),
        (("kinds", 0, "alternatives", 0, "communication", 0, "axes"), "0"),
        (("kinds", 0, "alternatives", 0, "communication", 0, "purpose"), "pleasure"),
        (("blocks", 0, "kind"), 1),
        (("blocks", 0, "chosen"), 1),
        (("moves", 0), "a move"),
        (("moves", 0, "second"), 2),
        (("tried", 0, "chosen"), 1),
    ],
)
def test_a_report_with_a_damaged_field_is_refused(path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        decode(PlanReport, _damaged(path, value))


def test_a_report_that_lacks_a_field_is_refused() -> None:
    content = json.loads(json.dumps(encode(REPORT)))
    del content["moves"]
    with pytest.raises(KeyError):
        decode(PlanReport, content)


def test_a_plan_from_before_purposes_were_kept_has_collectives_of_unknown_purpose() -> None:
    content = json.loads(json.dumps(encode(REPORT)))
    del content["kinds"][0]["alternatives"][0]["communication"][0]["purpose"]
    assert decode(PlanReport, content) == REPORT


def test_a_plan_says_where_communication_is_known_from_only_where_xla_partitions() -> None:
    content = encode(REPORT)
    assert "communication_source" not in content["kinds"][0]["alternatives"][0]


@pytest.mark.parametrize("gap_s", [0.0, 1e-3, None])
def test_caveats_and_the_gap_of_a_search_are_read_back(gap_s: float | None) -> None:
    report = replace(gpt(), caveats=(Caveat("the link is a guess", may_cost=True),), gap_s=gap_s)
    assert decode(PlanReport, json.loads(json.dumps(encode(report)))) == report


def test_a_report_from_before_caveats_were_kept_has_none_and_an_exact_search() -> None:
    content = encode(gpt())
    assert not {"caveats", "gap_s"} & set(content)
    assert decode(PlanReport, json.loads(json.dumps(content))).caveats == ()
