"""Sets files aside that are not sound profile databases; nothing is ever deleted.

Takes a path and gives the name that the file has now. Invariant: the file and SQLite's side files keep names that
belong together, so what is in them can still be looked at, and no file that was set aside before is overwritten.
"""

import itertools
from datetime import UTC, datetime
from pathlib import Path

SIDE_FILES = ("-wal", "-shm", "-journal")  # SQLite finds them by the database's name


def set_aside(path: Path, now: datetime | None = None) -> Path:
    """Rename a database to `NAME.damaged-TIME`, with its side files; gives the new path.

    Nobody else may be setting the same file aside meanwhile.

    Raises:
        OSError: the directory or the file system does not allow it.
    """
    time = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    first = path.with_name(f"{path.name}.damaged-{time}")
    names = itertools.chain([first], (Path(f"{first}-{number}") for number in itertools.count(2)))
    aside = next(name for name in names if not any(Path(f"{name}{side}").exists() for side in ("", *SIDE_FILES)))
    path.rename(aside)
    for suffix in SIDE_FILES:
        side = Path(f"{path}{suffix}")
        if side.exists():
            side.rename(f"{aside}{suffix}")
    return aside
