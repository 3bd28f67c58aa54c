"""Files that a command line names: what is there, and, before the work, what its result cannot be written to."""

import os
from pathlib import Path

import pytest

from alpa_cfp.cli.files import check_are_different, check_can_write
from alpa_cfp.cli.process import UserError
from alpa_cfp.file_kinds import file_kind


def test_what_is_at_a_path_is_said_without_opening_it(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    names = ("nothing", "empty", "file", "link", "dangling", "pipe", "file/below", ".")
    kinds = [file_kind(tmp_path / name) for name in names]
    assert kinds == ["absent", "empty", "file", "file", "absent", "other", "absent", "directory"]


@pytest.mark.parametrize("name", ["absent/a.json", "file/a.json"])
def test_a_file_needs_a_directory_that_is_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(UserError, match=r"--json .*a\.json cannot be written: is there such a directory"):
        check_can_write(tmp_path / name, "--json")


def test_a_directory_is_no_file_to_write(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--json .* is a directory"):
        check_can_write(tmp_path, "--json")


@pytest.mark.parametrize("name", ["old.json", "new.json"])
def test_what_is_read_only_is_not_written(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old.json").write_text("text")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # permissions do not bind the superuser
    with pytest.raises(UserError, match="is it yours"):
        check_can_write(tmp_path / name, "--json")


def test_a_file_that_is_there_or_can_be_made_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.json").write_text("text")
    for name in ("old.json", "new.json", str(tmp_path / "new.json")):
        check_can_write(Path(name), "--json")
    check_can_write(None, "--json")
    assert list(tmp_path.iterdir()) == [tmp_path / "old.json"]


def test_one_file_is_not_named_twice_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"--picture and --json are the same file, .*a\.png: name another one"):
        check_are_different({"--json": Path("a.png"), "--html": None, "--picture": tmp_path / "." / "a.png"})


def test_files_with_different_names_and_the_null_device_are_fine() -> None:
    null = Path(os.devnull)
    check_are_different({"--json": Path("a.json"), "--picture": Path("a.png"), "--html": null, "--out": null})
