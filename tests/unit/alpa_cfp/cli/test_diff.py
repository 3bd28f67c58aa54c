"""`alpa-cfp diff` compares the files of two plans."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from alpa_cfp.cli.main import main
from alpa_cfp.plan.plan import Plan
from alpa_cfp.report.comparing import diff
from unit.alpa_cfp.report.reports import gpt, plan_of


@pytest.fixture
def plans() -> tuple[Plan, Plan]:
    """Two plans of one program; the second has another head."""
    report = gpt(2)
    *blocks, head = report.blocks
    return plan_of(report), plan_of(replace(report, blocks=(*blocks, replace(head, chosen=2))))


@pytest.fixture
def saved(plans: tuple[Plan, Plan], tmp_path: Path) -> list[str]:
    """Their files."""
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for plan, path in zip(plans, paths, strict=True):
        plan.save(path)
    return list(map(str, paths))


def test_two_plans_are_compared(plans: tuple[Plan, Plan], saved: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *saved]) == 0
    assert capsys.readouterr().out == diff(*plans)


def test_json_has_the_blocks_that_differ(saved: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *saved, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["equal"] is False
    (block,) = content["blocks"]
    assert block["blocks"] == ["lm_head"]
    assert block["b"]["strategy"] == "samples split on axes 0 and 1"


def test_a_plan_and_itself_are_equal(saved: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", saved[0], saved[0]]) == 0
    assert capsys.readouterr().out == "The plans are equal.\n"


def test_a_file_that_is_missing_or_no_plan_is_one_line(
    saved: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, reason in (("absent", "No such file or directory"), ("binary", "it is no text in UTF-8")):
        assert main(["diff", saved[0], str(tmp_path / name)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert str(tmp_path / name) in line
        assert reason in line
