"""Tells whether a path is a file, a folder, something else, or absent."""

import stat
from pathlib import Path
from typing import Literal

# An empty file can become a database; opening something else, such as a pipe, may block for ever.
Kind = Literal["absent", "empty", "file", "directory", "other"]


def file_kind(path: Path) -> Kind:
    """The kind of the file at a path; links are followed.

    Raises:
        OSError: the path cannot be accessed.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "absent"
    if stat.S_ISDIR(found.st_mode):
        return "directory"
    if not stat.S_ISREG(found.st_mode):
        return "other"
    return "file" if found.st_size else "empty"
