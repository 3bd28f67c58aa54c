"""What there is at a path: a file, a folder, something else, or nothing."""

import stat
from pathlib import Path
from typing import Literal

# An empty one becomes a database; opening another one (a pipe) may wait for ever.
Kind = Literal["absent", "empty", "file", "directory", "other"]


def file_kind(path: Path) -> Kind:
    """What is at a path; links are followed.

    Raises:
        OSError: it cannot be looked at.
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
