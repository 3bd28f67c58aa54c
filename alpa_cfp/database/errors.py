"""The errors and warnings of the profile database, each worded once: what failed, the value, why, what to do.

Takes the wrong values; gives exceptions, or the text of a warning.
Each class also derives from the built-in exception that Python code would expect in its place.
"""

from pathlib import Path


class ProfileDatabaseError(Exception):
    """The base class of the profile database's errors."""


class ProfileValueError(ProfileDatabaseError, ValueError):
    """A field of a key or of a profile has a value that it cannot have."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        shown = repr(value)
        shown = shown if len(shown) <= 200 else f"{shown[:200]}... ({len(shown)} characters)"
        super().__init__(f"{field} is {shown}, but {rule}")


class DatabaseMissingError(ProfileDatabaseError, FileNotFoundError):
    """A database that is to be read only does not exist."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"there is no profile database at {path}, and one that is opened read-only (replay) is never made. Measure "
            "first, copy the file there, or name another one: the path, or the environment variable ALPA_CFP_DATABASE"
        )


class DatabaseDamagedError(ProfileDatabaseError, RuntimeError):
    """A file is not a sound profile database of this version."""

    def __init__(self, path: Path | str, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"{path} cannot be read as a profile database: {reason}. It was left as it is. A process was perhaps cut "
            "off while it copied the file (copy with export_json or merge instead), or the path is not the one that "
            "was meant. Opened for writing, such a file is set aside and a new one is made"
        )


class DatabaseUnavailableError(ProfileDatabaseError, OSError):
    """A file cannot be read now, whether it is sound or not."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"the profile database {path} cannot be opened: {reason}. Look at the permissions of the file and of its "
            "directory; a file whose last writer was killed needs a writable directory, or a copy with its -wal file"
        )


class DatabaseReadonlyError(ProfileDatabaseError, PermissionError):
    """A database that was opened read-only would be changed."""

    def __init__(self, what: str, path: Path | None) -> None:
        super().__init__(
            f"{what} would change the profile database {path}, which was opened with readonly=True. "
            "Open it without, or collect new profiles in another file and merge them"
        )


class DatabaseWriteError(ProfileDatabaseError, OSError):
    """A change of many profiles at once was not written; the database is as it was before."""

    def __init__(self, what: str, path: Path | None, reason: str) -> None:
        super().__init__(
            f"{what} did not change the profile database {path or 'in memory'}: {reason}. Everything in it is as it "
            "was. Free space on the disk, wait for the other writer or look at the file's permissions, then do it again"
        )


class DatabaseClosedError(ProfileDatabaseError, RuntimeError):
    """A database is used after it was closed, or in a forked process."""

    @classmethod
    def closed(cls, path: Path | None) -> "DatabaseClosedError":
        return cls(f"the profile database {path or 'in memory'} was closed. Open it again with ProfileDatabase.open")

    @classmethod
    def forked(cls, path: Path | None) -> "DatabaseClosedError":
        return cls(
            f"the profile database {path or 'in memory'} was opened by the process that this one was forked from, and "
            "SQLite's locks do not survive a fork. Open it in each process, after the fork"
        )


class ExchangeFormatError(ProfileDatabaseError, ValueError):
    """A JSON file is not an export of profiles; nothing of it was imported."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} is not an export of profiles that this version can read: {reason}. Nothing of it was imported. "
            "Export it again with ProfileDatabase.export_json"
        )


class PruneError(ProfileDatabaseError, ValueError):
    """Pruning without a condition would remove everything."""

    def __init__(self) -> None:
        super().__init__(
            "prune() was called without a condition and would remove every profile. Give before=, device_kind= or "
            "jaxlib_version=, or status=; to start from nothing, move the file away"
        )


def set_aside_warning(path: Path, aside: Path | None, reason: str) -> str:
    """The warning when a damaged file was renamed, or could not be (`aside` is None)."""
    if aside is None:
        return (
            f"{path} cannot be read as a profile database ({reason}) and cannot be renamed. New profiles are kept in "
            "memory only and are lost when this process ends: name another file with ALPA_CFP_DATABASE"
        )
    return (
        f"{path} cannot be read as a profile database ({reason}). It is set aside, unchanged, as {aside}, and a new "
        "one is made: what it held is measured again"
    )


def in_memory_warning(path: Path, reason: str, keys: int) -> str:
    """The warning when a database could not be opened for writing."""
    return (
        f"the profile database {path} cannot be opened for writing: {reason}. Planning goes on with the {keys} keys "
        "that could be read, but new profiles are kept in memory only and are lost when this process ends: make the "
        "file writable, or name another one with ALPA_CFP_DATABASE"
    )


def not_kept_warning(path: Path | None, reason: str, count: int) -> str:
    """The warning when a profile could not be written."""
    return (
        f"{count} profiles could not be written to the profile database {path or 'in memory'}: {reason}. What it held "
        "is still there. They are used in this process, and every further profile tries again to write them; if none "
        "succeeds they are lost when this process ends: free space on the disk, or save them with export_json"
    )
