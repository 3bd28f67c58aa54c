"""`alpa-cfp plan` plans without compiling the step, and keeps the plan; what is wrong ends in one line."""

from pathlib import Path

import pytest

from alpa_cfp import Plan
from alpa_cfp.cli.main import main

pytestmark = pytest.mark.slow

TINY_MLP = "plan --model mlp --size tiny --mesh 2x2"


def test_an_estimated_plan_is_said_in_words_and_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert main([*f"{TINY_MLP} --costs estimate --out".split(), str(file)]) == 0
    said = capsys.readouterr()
    plan = Plan.load(file)
    assert plan.mesh_shape == (2, 2)
    assert plan.costs == "estimate"
    assert said.out.startswith(f"planned {len(plan.strategies)} blocks on a 2x2 mesh in ")
    assert f"written: {file}" in said.out
    assert said.err == "planning mlp on a 2x2 mesh\n"


def test_a_plan_with_micro_batches_is_one_for_the_whole_step(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    assert main([*f"{TINY_MLP} --costs estimate --out".split(), str(whole)]) == 0
    assert main([*f"{TINY_MLP} --costs estimate --micro-batches 2 --out".split(), str(parts)]) == 0
    assert Plan.load(whole).program != Plan.load(parts).program


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--memory-mb 0", "--memory-mb is 0, and must be above zero"),
        ("--out /nowhere/plan.json", "--out /nowhere/plan.json cannot be written"),
        ("--database /nowhere/a.sqlite", "--database /nowhere/a.sqlite cannot be written"),
        ("--ray local --costs estimate", "--costs estimate runs nothing, and so needs no hosts: leave --ray out"),
        ("--ray local --costs replay", "--costs replay runs nothing, and so needs no hosts: leave --ray out"),
        ("--out a.json --database a.json", "--database and --out are the same file, "),
        (f"{TINY_MLP.removeprefix('plan ')} --costs estimate --memory-mb 0.001", "no plan fits"),
    ],
)
def test_wrong_use_is_one_line_that_says_what_to_do(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words.split()]) == 2
    assert f"alpa-cfp plan: {message}" in capsys.readouterr().err.splitlines()[-1]


def test_replay_without_a_database_says_that_there_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = tmp_path / "none.sqlite"
    assert main([*f"{TINY_MLP} --costs replay --database".split(), str(missing)]) == 2
    assert "has no profiles of a 2x2 mesh" in capsys.readouterr().err
