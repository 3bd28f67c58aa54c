"""The table of a comparison on a target says all in words and numbers, also of methods that failed; no plugin."""

import json
from typing import Any

from alpa_cfp_bench.targets.case import Sized, TargetCase
from alpa_cfp_bench.targets.comparison import METHODS, Limits
from alpa_cfp_bench.targets.rankings import Row
from alpa_cfp_bench.targets.table import NAMES, is_modelled, lines, named, to_content
from alpa_cfp_bench.workloads.sizes import SIZES
from unit.benchmarks.alpa_cfp_bench.targets import target_cases

CASE = TargetCase.on(Sized("mlp", SIZES["mlp"]), "h100:1x8", (2, 4))
COMPILER = "a compiler 1.0"


def row(method: str, step_s: float, **fields: Any) -> Row:
    times = dict.fromkeys(("computing_s", "communicating_s", "hidden_s"), step_s / 2)
    others = {"mfu": 0.25, "memory_bytes": 4_200_000, "planning_s": 1.25, "parameters": 1234}
    return target_cases.row(method, step_s, fits=fields.pop("fits", True)) | times | others | fields


def failed(method: str, failure: str) -> Row:
    return {"method": method, "failure": failure, "fits": False}


def text(*rows: Row, limits: Limits = Limits(60), width: int | None = None) -> str:  # noqa: B008 - it is frozen
    return "\n".join(lines(CASE, rows, limits, COMPILER, width))


def cells(said: str, method: str) -> list[str]:
    line = next(line for line in said.splitlines() if line.startswith(f"{method}  "))
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_a_row_has_step_ratio_utilisation_communication_memory_and_planning() -> None:
    said = text(row("cfp", 0.002), row("zero2", 0.003))
    assert cells(said, "cfp") == [
        *("cfp", "2.00 ms", "1.00", "25.0%", "1.00 ms", "1.00 ms", "1.00 ms", "4.2 MB", "1.2 s"),
    ]
    assert cells(said, "zero2")[2] == "1.50"


def test_the_head_says_what_was_compiled_for_what_and_that_nothing_has_run() -> None:
    said = text(row("cfp", 0.002))
    assert "A training step of mlp (1,234 parameters, 512 samples) for h100:1x8, a 2x4 mesh" in said
    assert "compiled by a compiler 1.0, its time modelled; nothing has run" in said


def test_what_does_not_fit_is_no_best_and_says_so() -> None:
    said = text(row("cfp", 0.002), row("propagation", 0.001, fits=False), limits=Limits(60, memory_budget_bytes=10**7))
    assert cells(said, "cfp")[2] == "1.00"
    assert cells(said, "propagation")[2] == "does not fit"
    assert "the fastest method that fits into 10 MB" in said
    assert "order: cfp, in all scenarios." in said


def test_a_method_that_failed_has_a_row_and_its_reason_in_one_line() -> None:
    said = text(row("cfp", 0.002), failed("alpa-ilp", "not done after\n900 s " + "and so on " * 100))
    assert cells(said, "alpa-ilp")[:2] == ["alpa-ilp", "none"]
    reason = next(line for line in said.splitlines() if line.startswith("alpa-ilp has no step: not done after 900 s"))
    assert len(reason) < 300


def test_a_comparison_in_which_all_failed_says_why_of_each() -> None:
    rows = [failed("cfp", "it crashed"), failed("zero2", "it hung")]
    said = text(*rows)
    assert "cfp has no step: it crashed" in said
    assert "zero2 has no step: it hung" in said
    assert "No method fits." in said
    assert not is_modelled(rows)


def test_equal_programs_are_named() -> None:
    said = text(row("cfp", 0.002, program="p"), row("zero2", 0.002, program="p"), row("zero3", 0.002, program="q"))
    assert "zero2 has the same program as cfp" in said
    assert "zero3 has the same" not in said


def test_no_line_is_wider_than_the_terminal_and_each_method_is_explained() -> None:
    said = text(row("cfp", 0.002), row("megatron-axis-1", 0.003), width=60)
    assert max(map(len, said.splitlines())) <= 60
    assert "layers split along axis 1 of the mesh" in " ".join(said.split())


def test_methods_have_the_names_of_the_command_line() -> None:
    assert set(NAMES.values()) == set(METHODS)
    assert [named({"method": method})["method"] for method in METHODS] == list(NAMES)
    assert named({"method": "Megatron along axis 1, data parallel"})["method"] == "megatron-axis-1"


def test_the_json_has_all_rows_the_budget_and_the_compiler() -> None:
    rows = [row("cfp", 0.002), failed("zero2", "it hung")]
    content = json.loads(
        json.dumps(to_content(CASE, rows, Limits(60, memory_budget_bytes=10**7), COMPILER, "a command"))
    )
    assert content["methods"] == rows
    assert (content["target"], content["mesh"], content["memory_budget_bytes"]) == ("h100:1x8", "2x4", 10**7)
    assert (content["compiler"], content["command"]) == (COMPILER, "a command")
