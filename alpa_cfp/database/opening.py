"""Finds, opens and checks the file of a profile database.

Takes a path and gives an SQLite connection whose tables are sound, or a copy in memory. Invariants: a file that is
opened read-only is never made, changed or renamed; of several processes that open the same path at once, one looks
at it, sets it aside or makes it, while the others wait.

The file is only ever opened through SQLite: a process that opens and closes it in another way loses its locks on it.
"""

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from alpa_cfp.database import damaged, schema
from alpa_cfp.database.errors import (
    DatabaseDamagedError,
    DatabaseMissingError,
    DatabaseUnavailableError,
    in_memory_warning,
    set_aside_warning,
)

logger = logging.getLogger(__name__)

ENVIRONMENT_VARIABLE = "ALPA_CFP_DATABASE"
BUSY_TIMEOUT_S = 30.0  # other writers hold the lock for milliseconds; longer means that one hangs


def database_path(path: str | os.PathLike[str] | None = None) -> Path:
    """Where the database lies: the path given, else $ALPA_CFP_DATABASE, else `alpa_cfp/profiles.sqlite` in the cache.

    The user's cache directory is $XDG_CACHE_HOME if that is absolute, as its specification says, else `~/.cache`.
    """
    chosen = path or os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(cache) if os.path.isabs(cache) else Path("~/.cache").expanduser()
    return root / "alpa_cfp" / "profiles.sqlite"


def file_identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from another one of its name, or None if there is none."""
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
    """A connection to the file, which is made or set aside as needed, and whether the file keeps what is written.

    Where it cannot be (no permission, no space, no such directory), a warning is logged and the connection is to a
    copy in memory of what could be read: planning needs profiles more than it needs them kept.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(path.parent):
            return _open_or_make(path), True
    except (OSError, sqlite3.Error) as error:
        reason = str(error)
    try:
        connection = open_snapshot(path)
    except (DatabaseMissingError, DatabaseDamagedError, DatabaseUnavailableError):
        connection = connect_in_memory()
    logger.warning(in_memory_warning(path, reason, len(schema.all_keys(connection))))
    return connection, False


def open_to_change(path: Path) -> sqlite3.Connection:
    """A connection to a file that is sound, or not there yet: for changes that a user asks for by name.

    Planning takes what it can get (`open_for_writing`); here a file that cannot be used is left as it is.

    Raises:
        DatabaseDamagedError: it is not a sound database of this version.
        DatabaseUnavailableError: it cannot be read or written.
    """
    connection = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(path.parent):
            connection = _connect(str(path))
            reason = _make_ready(connection, path)
            if reason is None:
                # Permissions and locks show when something is to be written, and not before.
                with schema.transaction(connection):
                    return connection
    except (OSError, sqlite3.Error) as error:
        if connection is not None:
            connection.close()
        raise DatabaseUnavailableError(path, str(error)) from error
    connection.close()
    raise DatabaseDamagedError(path, reason)


def _open_or_make(path: Path) -> sqlite3.Connection:
    connection = _connect(str(path))
    try:
        reason = _make_ready(connection, path)
    except BaseException:
        connection.close()
        raise
    if reason is None:
        return connection
    connection.close()
    try:
        aside = damaged.set_aside(path)
    except OSError:
        logger.warning(set_aside_warning(path, None, reason))
        raise
    logger.warning(set_aside_warning(path, aside, reason))
    connection = _connect(str(path))
    try:
        _make_ready(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_ready(connection: sqlite3.Connection, path: Path) -> str | None:
    """Make the tables of a new file, or check an old one; gives what is wrong with it."""
    try:
        if schema.is_empty(connection):
            if schema.is_cut_off(connection, path):
                return "it is a few bytes long"
            _use_log(connection)
            schema.create(connection)
            return None
        reason = schema.what_is_wrong(connection, path)
        if reason is None:
            _use_log(connection)
        return reason
    except schema.READING_ERRORS as error:
        if schema.is_about_access(error):
            raise
        return str(error)


def _use_log(connection: sqlite3.Connection) -> None:
    # Readers then never wait for the writer. Where a file system cannot do it, SQLite stays with its old journal.
    connection.execute("PRAGMA journal_mode = WAL")
    # A profile takes seconds to measure and milliseconds to sync: none is lost even when the machine loses power.
    connection.execute("PRAGMA synchronous = FULL")


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
            # No log, so nobody writes: read without locks, which would leave side files next to the database.
            try:
                copy = _copy(f"{address}&immutable=1", path)
            except (DatabaseDamagedError, *schema.READING_ERRORS):
                if _state(path) == before:
                    raise
            else:
                if _state(path) == before:
                    return copy
                copy.close()
        return _copy(address, path)
    except (OSError, *schema.READING_ERRORS) as error:
        if isinstance(error, OSError) or schema.is_about_access(error):
            raise DatabaseUnavailableError(path, str(error)) from error
        raise DatabaseDamagedError(path, str(error)) from error


def _copy(address: str, path: Path) -> sqlite3.Connection:
    with closing(_connect(address, uri=True)) as source:
        reason = "it is empty" if schema.is_empty(source) else schema.what_is_wrong(source, path)
        if reason is not None:
            raise DatabaseDamagedError(path, reason)
        copy = _connect(":memory:")
        try:
            source.backup(copy)
        except BaseException:
            copy.close()
            raise
        return copy


def _state(path: Path) -> tuple[int, ...]:
    """What changes when a database is written; the size of its log comes last."""
    status, log = path.stat(), Path(f"{path}-wal")
    return status.st_ino, status.st_size, status.st_mtime_ns, log.stat().st_size if log.exists() else 0


def _connect(address: str, uri: bool = False) -> sqlite3.Connection:
    # No isolation level: transactions begin and end where the code says so. Threads are kept apart by ProfileDatabase.
    return sqlite3.connect(address, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, uri=uri)


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Hold the directory's lock, so that nobody sets aside the file that somebody else has just made.

    Goes on without after `BUSY_TIMEOUT_S`, or where a file system cannot lock directories: only processes that find
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
