"""Find, open and check the file of a profile database.

Takes a path; gives an SQLite connection whose tables are sound, or a copy in memory. Invariants: a file that is opened
read-only is never made, changed or renamed; nothing is ever deleted: a damaged file is set aside under a new name; of
several processes that open the same path at once, one checks it, sets it aside or makes it, while the others wait.

The file is only ever opened through SQLite: a process that opens and closes it in another way loses its locks on it.
"""

import fcntl
import itertools
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from alpa_cfp.database import schema
from alpa_cfp.database.errors import (
    DatabaseDamagedError,
    DatabaseMissingError,
    DatabaseUnavailableError,
    ProfileValueError,
    in_memory_warning,
    set_aside_warning,
)

logger = logging.getLogger(__name__)

ENVIRONMENT_VARIABLE = "ALPA_CFP_DATABASE"
BUSY_TIMEOUT_S = 30.0  # other writers hold the lock for milliseconds; longer means that one hangs
_SIDE_FILES = ("-wal", "-shm", "-journal")  # SQLite finds them by the database's name


def database_path(path: str | os.PathLike[str] | None = None) -> Path:
    """The database's path: the given one, else $ALPA_CFP_DATABASE, else `alpa_cfp/profiles.sqlite` in the cache.

    The user's cache directory is $XDG_CACHE_HOME if that is absolute, as its specification says, else `~/.cache`.
    """
    chosen = path or os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(cache) if os.path.isabs(cache) else Path("~/.cache").expanduser()
    return root / "alpa_cfp" / "profiles.sqlite"


def file_identity(path: Path) -> tuple[int, int] | None:
    """The identity of a file, which another file of its name does not share; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def connect_in_memory() -> sqlite3.Connection:
    """An empty database that no file keeps."""
    connection = _connect(":memory:")
    schema.create(connection)
    return connection


def open_for_writing(path: Path) -> tuple[sqlite3.Connection, bool]:
    """A connection to the file, which is made or set aside as needed, and whether writing to it reaches the file.

    Where it cannot (no permission, no space, no such directory), a warning is logged and the connection is to a copy in
    memory of what could be read: planning needs profiles more than it needs them kept.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _directory_lock(path.parent):
            try:
                return _open(path), True
            except DatabaseDamagedError as error:
                _set_aside_with_warning(path, error.reason)
            return _open(path), True
    except (OSError, sqlite3.Error, DatabaseDamagedError) as error:
        reason = str(error)
    try:
        connection = open_snapshot(path)
    except (DatabaseMissingError, DatabaseDamagedError, DatabaseUnavailableError):
        connection = connect_in_memory()
    logger.warning(in_memory_warning(path, reason, len(schema.all_keys(connection))))
    return connection, False


def open_to_change(path: Path) -> sqlite3.Connection:
    """A connection to a file that is sound, or not there yet: for changes that a user asks for by name.

    A file that cannot be used is left as it is, unlike in `open_for_writing`.

    Raises:
        DatabaseDamagedError: it is not a sound database of this version.
        DatabaseUnavailableError: it cannot be read or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _directory_lock(path.parent):
            return _open(path, checks_writing=True)
    except (OSError, sqlite3.Error) as error:
        raise DatabaseUnavailableError(path, str(error)) from error


def open_snapshot(path: Path) -> sqlite3.Connection:
    """A copy in memory of a sound file as it is at one moment, through which the file cannot be changed.

    Raises:
        DatabaseMissingError: there is no such file.
        DatabaseDamagedError: it is not a sound database of this version.
        DatabaseUnavailableError: it cannot be read.
    """
    if not path.exists():
        raise DatabaseMissingError(path)
    address = f"file:{quote(str(path))}?mode=ro"
    try:
        before = _state(path)
        if before[-1] == 0:
            # No log, so no writer: read without locks, which would leave side files next to the database.
            try:
                copy = _copy(f"{address}&immutable=1", path)
            except (DatabaseDamagedError, sqlite3.Error):
                if _state(path) == before:
                    raise
            else:
                if _state(path) == before:
                    return copy
                copy.close()
        return _copy(address, path)
    except (OSError, sqlite3.Error) as error:
        raise DatabaseUnavailableError(path, str(error)) from error


def set_aside(path: Path, now: datetime | None = None) -> Path:
    """Rename a database to `NAME.damaged-TIME`, with SQLite's side files; gives the new path.

    The files keep names that belong together, and no file that was set aside before is overwritten. The caller holds
    the directory's lock.

    Raises:
        OSError: the directory or the file system does not allow it.
    """
    time = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    first = path.with_name(f"{path.name}.damaged-{time}")
    names = itertools.chain([first], (Path(f"{first}-{number}") for number in itertools.count(2)))
    aside = next(name for name in names if not any(Path(f"{name}{side}").exists() for side in ("", *_SIDE_FILES)))
    path.rename(aside)
    for suffix in _SIDE_FILES:
        side = Path(f"{path}{suffix}")
        if side.exists():
            side.rename(f"{aside}{suffix}")
    return aside


def _set_aside_with_warning(path: Path, reason: str) -> None:
    try:
        aside = set_aside(path)
    except OSError:
        logger.warning(set_aside_warning(path, None, reason))
        raise
    logger.warning(set_aside_warning(path, aside, reason))


def _open(path: Path, *, checks_writing: bool = False) -> sqlite3.Connection:
    """A connection to a sound file, or to a new one whose tables are made.

    Raises:
        DatabaseDamagedError: it is not a sound database of this version.
        OSError, sqlite3.Error: it cannot be read; or with `checks_writing` not be written.
    """
    connection = _connect(str(path))
    try:
        with _damage_in(path):
            if schema.is_empty(connection):
                if schema.is_cut_off(connection, path):
                    raise DatabaseDamagedError(path, "it is a few bytes long")
                _use_log(connection)
                schema.create(connection)
            else:
                schema.check(connection, path)
                _use_log(connection)
                schema.migrate(connection)
        if checks_writing:
            with schema.transaction(connection):
                pass  # permissions and locks show only when a write begins
    except BaseException:
        connection.close()
        raise
    return connection


def _copy(address: str, path: Path) -> sqlite3.Connection:
    with _damage_in(path), closing(_connect(address, uri=True)) as source:
        if schema.is_empty(source):
            raise DatabaseDamagedError(path, "it is empty")
        schema.check(source, path)
        copy = _connect(":memory:")
        try:
            source.backup(copy)
            schema.migrate(copy)
        except BaseException:
            copy.close()
            raise
        return copy


@contextmanager
def _damage_in(path: Path) -> Iterator[None]:
    """Turn the errors of reading a damaged file into one; errors of access stay as they are.

    Raises:
        DatabaseDamagedError: the content is damaged.
    """
    try:
        yield
    except ProfileValueError as error:
        raise DatabaseDamagedError(path, f"a row of it does not make sense: {error}") from error
    except schema.READING_ERRORS as error:
        if schema.is_about_access(error):
            raise
        raise DatabaseDamagedError(path, str(error)) from error


def _use_log(connection: sqlite3.Connection) -> None:
    # Readers then never wait for the writer. Where a file system cannot do it, SQLite keeps its old journal.
    connection.execute("PRAGMA journal_mode = WAL")
    # A profile takes seconds to measure and milliseconds to sync: none is lost even when the machine loses power.
    connection.execute("PRAGMA synchronous = FULL")


def _state(path: Path) -> tuple[int, ...]:
    """Numbers that change when a database is written; the size of its log comes last."""
    status, log = path.stat(), Path(f"{path}-wal")
    return status.st_ino, status.st_size, status.st_mtime_ns, log.stat().st_size if log.exists() else 0


def _connect(address: str, uri: bool = False) -> sqlite3.Connection:
    # No isolation level: transactions begin and end explicitly. ProfileDatabase keeps threads apart.
    return sqlite3.connect(address, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, uri=uri)


@contextmanager
def _directory_lock(directory: Path) -> Iterator[None]:
    """Hold the directory's lock, so that no process sets aside a file that another one has just made.

    Goes on without it after `BUSY_TIMEOUT_S`, or where a file system cannot lock directories: only processes that find
    the same file damaged at the same moment need it.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        end = time.monotonic() + BUSY_TIMEOUT_S
        while time.monotonic() < end:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.005)
            except OSError:
                break
        yield
    finally:
        os.close(descriptor)
