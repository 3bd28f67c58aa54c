"""A command line that cannot be is refused in one line that names what is wrong, before anything is computed."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from alpa_cfp.cli.main import WRONG_USE, main


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty current folder, and the environment put back afterwards: commands ask for devices there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALPA_CFP_DATABASE", str(tmp_path / "none.sqlite"))
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that cannot be says, without the text that argparse puts before it."""
    try:
        code = main(arguments)
    except SystemExit as end:  # of argparse
        code = end.code
    assert code == WRONG_USE
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()[-1].removeprefix("alpa-cfp ")


@pytest.mark.parametrize("command", ["bench", "plan"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "gtp"], "there is no model 'gtp': --model takes one of gpt, "),
        (["--mesh", "8"], "'8' is no mesh: --mesh takes two sizes of at least 1"),
        (["--size", "layers"], "--size 'layers' is neither \"tiny\" nor NAME=N with a NAME of "),
        (["--size", "batch=6", "--micro-batches", "4"], "a batch of 6 samples cannot be cut into 4 equal parts"),
        (["--mesh", "50x50"], "a 50x50 mesh needs 2500 devices, and there are 8 (cpu), because XLA_FLAGS is '"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(
    command: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(capsys, command, *arguments).startswith(f"{command}: {message}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "zero9"], "there is no method 'zero9': --methods takes some of cfp, "),
        (["--rounds", "0"], "--rounds is 0, and must be at least 1"),
        (["--methods", "zero2", "--save-plan", "plan.json"], "--save-plan writes the plan of the method cfp, which is"),
        (["--picture", "picture.bmp"], "--picture picture.bmp has no format: its name ends with .png, .svg or .pdf"),
        (["--json", "absent/a.json"], "--json absent/a.json cannot be written: is there such a directory"),
        (
            ["--size", "tiny", "batch=6", "--mesh", "1x4", "--methods", "data-parallel"],
            "data-parallel cannot run gpt on a 1x4 mesh: 6 samples cannot be split into 4 equal parts. Leave it out of",
        ),
    ],
)
def test_a_comparison_that_cannot_be_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(capsys, "bench", *arguments).startswith(f"bench: {message}")


def test_a_picture_without_matplotlib_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert told(capsys, "bench", "--picture", "a.png").startswith(
        "bench: --picture needs matplotlib, which is not inst"
    )


def test_a_command_without_alpa_points_to_the_doctor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "alpa", None)
    assert "`alpa-cfp doctor` says what is missing and how to install it" in told(capsys, "plan")


def test_a_budget_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "plan", "--memory-mb", "0") == "plan: --memory-mb is 0, and must be above zero"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list"], "there is no profile database at {folder}/none.sqlite: CFP makes it when it first measures"),
        (["import", "absent.json"], "there is no file absent.json"),
        (["import", "a.sqlite"], "a.sqlite is a database, not an export: alpa-cfp profiles merge a.sqlite"),
        (["list", "--mesh", "2by4"], "argument --mesh: '2by4' is no mesh: whole numbers with x between them, as 2x4"),
        (["prune", "--older-than", "3m"], "argument --older-than: '3m' is no age: a whole number and h, d or w"),
        (["prune", "--older-than", "9999999w"], "argument --older-than: '9999999w' is longer ago than calendars go"),
        (["prune", "--before", "May"], "argument --before: 'May' is no time: 2026-03-01, or 2026-03-01T12:00 (UTC)"),
    ],
)
def test_profiles_that_cannot_be_are_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.sqlite").write_bytes(b"SQLite format 3\0")
    assert message.format(folder=tmp_path) in told(capsys, "profiles", *arguments)
