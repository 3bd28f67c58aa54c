"""Checks of the files of a command line before the work begins. Nothing is opened, made or changed."""

import os
from collections.abc import Mapping
from pathlib import Path

from alpa_cfp.cli.process import UserError
from alpa_cfp.file_kinds import file_kind


def check_can_write(path: Path | None, option: str) -> None:
    """Checks that a file can be written.

    Raises:
        UserError: there is no such directory, or it cannot be written to.
    """
    if path is None:
        return
    where = path if path.exists() else path.absolute().parent
    if path.is_dir() or not (path.exists() or where.is_dir()) or not os.access(where, os.W_OK):
        reason = "is a directory" if path.is_dir() else "cannot be written: is there such a directory, and is it yours?"
        raise UserError(f"{option} {path} {reason}")


def check_can_fill(path: Path | None, option: str) -> None:
    """Checks that a folder can be made, or be written into.

    Raises:
        UserError: it is a file, or neither can be.
    """
    if path is None:
        return
    where = path if path.exists() else path.absolute().parent
    if not where.is_dir() or not os.access(where, os.W_OK):
        raise UserError(f"{option} {path} is no folder to write into: name one of yours, or a new one in one of yours")


def check_are_different(files: Mapping[str, Path | None]) -> None:
    """Checks that no file is given twice, because the second result would replace the first.

    Args:
        files: The files by their options.

    Raises:
        UserError: two of them are the same file.
    """
    seen: dict[Path, str] = {}
    for name, path in files.items():
        if path is None:
            continue
        place = path.resolve()
        if file_kind(path) == "other":  # /dev/null, say
            continue
        if place in seen:
            raise UserError(f"{name} and {seen[place]} are the same file, {path}: name another one")
        seen[place] = name
