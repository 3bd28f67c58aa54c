"""`alpa-cfp explain` says what is in the file of a plan; what it cannot read is one line and exit code 2."""

import json
from pathlib import Path

import pytest

from alpa_cfp.cli.main import main
from alpa_cfp.report.text import explain
from unit.alpa_cfp.report.reports import gpt, plan_of


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """The file of a plan."""
    path = tmp_path / "plan.json"
    plan_of(gpt(2)).save(path)
    return str(path)


def test_a_plan_is_explained(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", saved]) == 0
    assert capsys.readouterr().out == explain(plan_of(gpt(2)))


def test_all_says_every_alternative(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", saved, "--all"]) == 0
    assert capsys.readouterr().out == explain(plan_of(gpt(2)), everything=True)


def test_a_page_is_written(saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    assert main(["explain", saved, "--html", str(page)]) == 0
    assert capsys.readouterr().out == f"wrote {page}\n"
    assert page.read_text(encoding="utf-8") == plan_of(gpt(2)).report()


def test_one_block_is_found_by_part_of_its_name(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", saved, "--block", "mlp/up"]) == 0
    said = capsys.readouterr().out
    assert "mlp/up" in said
    assert "mlp/down" not in said


def test_json_has_each_folded_block_with_all_names(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", saved, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    (layers,) = [each for each in content["segments"] if each["count"] == 2]
    up = layers["blocks"][2]
    assert up["names"] == ["encoder/layer/0/mlp/up", "encoder/layer/1/mlp/up"]
    assert up["chosen"]["strategy"] == "weights split by column on axis 1; samples split on axis 0"
    assert len(up["alternatives"]) == 8


def test_json_of_one_block_has_no_other(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", saved, "--json", "--block", "lm_head"]) == 0
    (segment,) = json.loads(capsys.readouterr().out)["segments"]
    assert [each["name"] for each in segment["blocks"]] == ["lm_head"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--block", "nothing"], "no block of PLAN has 'nothing' in its name: embeddings/word, "),
        (["--block", "mlp", "--html", "-"], "--html shows the whole plan"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line(
    saved: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", saved, *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said.replace("PLAN", saved) in line


def test_a_file_that_is_missing_or_no_plan_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("no plan")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00plan")
    (tmp_path / "deep").write_text("[" * 100_000)
    reasons = {
        "text": "Expecting value",
        "binary": "it is no text in UTF-8",
        "deep": "it is nested too deeply",
        "missing": "No such file or directory",
        ".": "Is a directory",
    }
    for name, reason in reasons.items():
        assert main(["explain", str(tmp_path / name)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"alpa-cfp explain: {tmp_path / name}")
        assert reason in line


def test_a_page_is_not_written_over_the_plan_or_where_nothing_can_be(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(saved).read_text()
    assert main(["explain", saved, "--html", saved]) == 2
    assert f"--html and PLAN are the same file, {saved}" in capsys.readouterr().err
    assert Path(saved).read_text() == before
    assert main(["explain", saved, "--html", str(tmp_path / "absent" / "plan.html")]) == 2
    assert "plan.html cannot be written: is there such a directory" in capsys.readouterr().err


def test_a_block_of_a_plan_without_account_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    plan_of(None).save(path)
    assert main(["explain", str(path), "--block", "mlp"]) == 2
    assert "has no report" in capsys.readouterr().err


def test_a_plan_without_account_has_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    plan_of(None).save(path)
    assert main(["explain", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["has_account"] is False
