"""The JSON holds what was measured, where, when and by which command."""

import json
import math

from alpa_cfp_bench.case import CFP, ILP
from alpa_cfp_bench.checking import Difference
from alpa_cfp_bench.report import to_json
from unit.benchmarks.alpa_cfp_bench.comparisons import MACHINE, comparison, outcome, wrong


def test_the_machine_the_command_and_the_case_are_kept() -> None:
    content = json.loads(to_json(comparison(), MACHINE, "alpa-cfp bench"))
    assert content["machine"] == MACHINE
    assert content["command"] == "alpa-cfp bench"
    assert content["case"]["mesh"] == "2x4"
    assert content["effort"]["seed"] == 0


def test_a_method_has_its_times_its_ratio_and_its_collectives() -> None:
    method = json.loads(to_json(comparison(), MACHINE, ""))["methods"][CFP]
    assert method["step"]["median_ms"] == 40.0
    assert len(method["step_ms"]) == method["step"]["samples"] == 4
    assert method["to_alpa_ilp"]["paired"] == 0.8
    assert method["predicted_ms"] == 38.5
    assert method["collectives"][0] == {"kind": "all-gather", "count": 2, "size_bytes": 2_000_000}


def test_a_wrong_method_has_no_times_and_says_what_differs() -> None:
    method = json.loads(to_json(comparison(outcome(ILP, 50.0), wrong("zero3")), MACHINE, ""))["methods"]["zero3"]
    assert method["is_right"] is False
    assert method["step"] is None
    assert (method["difference"], method["difference_in"]) == (0.25, "params/w")


def test_what_is_not_finite_is_still_json() -> None:
    broken = outcome("zero3", 1.0, difference=Difference(math.inf, "loss"), is_right=False, samples=None, to_ilp=None)
    text = to_json(comparison(broken), MACHINE, "")
    assert "Infinity" not in text
    assert json.loads(text)["methods"]["zero3"]["difference"] > 1
