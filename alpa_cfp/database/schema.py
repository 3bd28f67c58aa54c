"""The tables of a profile database: making, checking, reading and changing them.

Takes SQLite connections. Invariant: the content is two sets, one of sessions (a key and one profile of it) and one of
programs' texts; a row's key is the digest of its content. Beside them a key has at most one timeline; of two the one
with the smaller digest stays. Adding a row twice changes nothing, so the union of two databases does not depend on the
order. Every function that changes something does so in one transaction.

Only features of SQLite 3.24 are used: distributions' Pythons are linked to old versions.
"""

import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from alpa_cfp.database.encoding import mesh_shape_from, mesh_shape_text, profile_from_text, profile_text
from alpa_cfp.database.errors import DatabaseDamagedError, ProfileValueError
from alpa_cfp.database.timelines import StepTimeline, timeline_from_text, timeline_text
from alpa_cfp.database.values import Profile, ProfileKey, Status, text_digest

APPLICATION_ID = 0x43465044  # "CFPD"; `file` and SQLite's own tools show it
SCHEMA_VERSION = 2  # a higher one is a newer release's; version 1 had no timelines

_TIMELINES = (
    "CREATE TABLE IF NOT EXISTS timelines (key TEXT PRIMARY KEY NOT NULL, digest TEXT NOT NULL, timeline BLOB NOT NULL)"
)
_TABLES = (
    # No foreign keys: sessions and texts may come in any order, and prune removes what is left over.
    "CREATE TABLE programs (digest TEXT PRIMARY KEY NOT NULL, text BLOB NOT NULL)",
    "CREATE TABLE keys (digest TEXT PRIMARY KEY NOT NULL, program TEXT NOT NULL, program_length INTEGER NOT NULL, "
    "mesh_shape TEXT NOT NULL, hosts TEXT NOT NULL, device_kind TEXT NOT NULL, jaxlib_version TEXT NOT NULL, "
    "xla_flags TEXT NOT NULL)",
    "CREATE TABLE sessions (key TEXT NOT NULL, digest TEXT NOT NULL, created_at TEXT NOT NULL, status TEXT NOT NULL, "
    "profile TEXT NOT NULL, PRIMARY KEY (key, digest)) WITHOUT ROWID",
    _TIMELINES,
)
_NAMES = {1: {"programs", "keys", "sessions"}, 2: {"programs", "keys", "sessions", "timelines"}}
_KEY_COLUMNS = "program, program_length, mesh_shape, hosts, device_kind, jaxlib_version, xla_flags"
# SQLite's codes for a file that could not be reached; every other code is about the content.
_ACCESS_CODES = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_AUTH,
}


@dataclass(frozen=True, slots=True)
class Record:
    """One session of one key, with the program's text and its timeline where they are known."""

    key: ProfileKey
    profile: Profile
    program_text: str | None = None
    timeline: StepTimeline | None = None


# The errors of reading a file. Python decodes SQLite's message, in which the bytes of a damaged schema may stand.
READING_ERRORS = (sqlite3.Error, UnicodeDecodeError)


def is_about_access(error: Exception) -> bool:
    """Whether the file could not be reached (locks, permissions, a full disk), rather than being no sound database."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _ACCESS_CODES


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Do all of the block or nothing of it; waits for other writers until the connection's timeout."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:  # after some errors SQLite has rolled back already
            connection.execute("ROLLBACK")


def create(connection: sqlite3.Connection) -> None:
    """Make the tables of an empty database."""
    with transaction(connection):
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a sound database to this version; does nothing where it has it already."""
    if _pragma(connection, "user_version") < SCHEMA_VERSION:
        with transaction(connection):
            connection.execute(_TIMELINES)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether a file is new: it has no tables and belongs to no application."""
    names = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return names == 0 and _pragma(connection, "application_id") == 0 and _pragma(connection, "user_version") == 0


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Check that this is a sound database of this version, or of an earlier one.

    Reads the whole file except the programs' texts and the timelines, whose digests are checked when they are read.

    Raises:
        DatabaseDamagedError, ProfileValueError, UnicodeDecodeError: it is not.
        sqlite3.Error: it is not, or the file could not be reached (`is_about_access`).
    """
    application, version = _pragma(connection, "application_id"), _pragma(connection, "user_version")
    if application != APPLICATION_ID:
        reason = f"it is a SQLite database of another application (its application_id is {application:#x})"
        raise DatabaseDamagedError(path, reason)
    if version > SCHEMA_VERSION:
        reason = f"its schema is version {version}, from a newer release; this one knows version {SCHEMA_VERSION}"
        raise DatabaseDamagedError(path, reason)
    if version < 1 or not {name for (name,) in connection.execute("SELECT name FROM sqlite_master")} >= _NAMES[version]:
        raise DatabaseDamagedError(path, "it lacks tables that every profile database has")
    problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise DatabaseDamagedError(path, f"SQLite finds in it: {' '.join(str(problem).split())}")
    if is_cut_off(connection, path):
        raise DatabaseDamagedError(path, "it is shorter than it says")
    # Bytes that changed inside a page look sound to SQLite.
    for digest, *fields in connection.execute(f"SELECT digest, {_KEY_COLUMNS} FROM keys"):
        if _key(fields).digest != digest:
            raise DatabaseDamagedError(path, "a key of it has changed since it was written")
    rows = "SELECT s.digest, s.profile, s.created_at, k.digest FROM sessions s LEFT JOIN keys k ON s.key = k.digest"
    for digest, profile, created_at, key in connection.execute(rows):
        # The digest is of the profile's text, and the text has the time, by which prune selects.
        if key is None or text_digest(profile) != digest or f'"{created_at}"' not in profile:
            raise DatabaseDamagedError(path, "a profile of it has changed since it was written")


def is_cut_off(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether a file has no whole pages, or fewer than its header says: SQLite reads missing bytes as zeros."""
    # While there is a log, the file may be behind it.
    pages, page_size = _pragma(connection, "page_count"), _pragma(connection, "page_size")
    size = path.stat().st_size
    log = Path(f"{path}-wal")
    has_log = log.exists() and log.stat().st_size > 0
    return not has_log and (size % page_size != 0 or size < pages * page_size)


def insert(connection: sqlite3.Connection, records: Iterable[Record]) -> int:
    """Add sessions and the texts of their programs; gives the number of new sessions."""
    new = 0
    with transaction(connection):
        for record in records:
            digest, text = record.key.digest, profile_text(record.profile)
            connection.execute(
                f"INSERT INTO keys (digest, {_KEY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (digest) DO NOTHING",
                (digest, *_key_row(record.key)),
            )
            new += connection.execute(
                "INSERT INTO sessions (key, digest, created_at, status, profile) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (key, digest) DO NOTHING",
                (digest, text_digest(text), record.profile.created_at, record.profile.status, text),
            ).rowcount
            if record.program_text is not None:
                _insert_text(connection, record.key.program, record.program_text)
            if record.timeline is not None:
                _insert_timeline(connection, digest, record.timeline)
    return new


def _insert_text(connection: sqlite3.Connection, digest: str, text: str) -> None:
    if connection.execute("SELECT 1 FROM programs WHERE digest = ?", (digest,)).fetchone() is None:
        packed = zlib.compress(text.encode())
        connection.execute("INSERT INTO programs (digest, text) VALUES (?, ?)", (digest, packed))


def _insert_timeline(connection: sqlite3.Connection, key: str, timeline: StepTimeline) -> None:
    text = timeline_text(timeline)
    connection.execute(
        "INSERT INTO timelines (key, digest, timeline) VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE "
        "SET digest = excluded.digest, timeline = excluded.timeline WHERE excluded.digest < digest",
        (key, text_digest(text), zlib.compress(text.encode())),
    )


def sessions_of(connection: sqlite3.Connection, key: ProfileKey) -> list[Profile]:
    """Every session of a key."""
    rows = connection.execute("SELECT profile FROM sessions WHERE key = ?", (key.digest,))
    return [profile_from_text(text) for (text,) in rows]


def all_sessions(connection: sqlite3.Connection) -> Iterator[tuple[ProfileKey, Profile]]:
    """Every session with its key, from one moment; those of a key are adjacent."""
    rows = connection.execute(
        f"SELECT k.digest, s.profile, {_KEY_COLUMNS} FROM sessions s JOIN keys k ON s.key = k.digest ORDER BY s.key"
    )
    last, key = None, None
    for digest, text, *fields in rows:
        if digest != last or key is None:
            last, key = digest, _key(fields)
        yield key, profile_from_text(text)


def all_keys(connection: sqlite3.Connection) -> list[ProfileKey]:
    """Every key that has a session."""
    return [_key(fields) for fields in connection.execute(f"SELECT {_KEY_COLUMNS} FROM keys")]


def text_of(connection: sqlite3.Connection, program: str) -> str | None:
    """The text of a program by its digest, or None if it was not given; ProfileValueError if it has changed."""
    row = connection.execute("SELECT text FROM programs WHERE digest = ?", (program,)).fetchone()
    return None if row is None else _unpacked(f"the text of program {program}", row[0], program)


def timeline_of(connection: sqlite3.Connection, key: ProfileKey) -> StepTimeline | None:
    """The timeline of a key, or None if it was not given; ProfileValueError if it has changed."""
    row = connection.execute("SELECT timeline, digest FROM timelines WHERE key = ?", (key.digest,)).fetchone()
    return None if row is None else timeline_from_text(_unpacked(f"the timeline {row[1]}", *row))


def _unpacked(what: str, packed: bytes, digest: str) -> str:
    try:
        text = zlib.decompress(packed).decode()
    except (TypeError, UnicodeDecodeError, zlib.error):
        text = None
    if text is None or text_digest(text) != digest:
        raise ProfileValueError(what, text, "it must have that digest")
    return text


def remove(
    connection: sqlite3.Connection, keys: Iterable[ProfileKey], before: str | None, status: Status | None = None
) -> int:
    """Remove the sessions of `keys` that are older than `before` and have this status; None for any.

    Keys without sessions, and programs and timelines without keys, go with them. Gives the number of sessions.
    """
    removed = 0
    with transaction(connection):
        for key in keys:
            statement, values = "DELETE FROM sessions WHERE key = ?", [key.digest]
            if before is not None:
                statement, values = f"{statement} AND created_at < ?", [*values, before]
            if status is not None:
                statement, values = f"{statement} AND status = ?", [*values, status]
            removed += connection.execute(statement, values).rowcount
        connection.execute("DELETE FROM keys WHERE digest NOT IN (SELECT key FROM sessions)")
        connection.execute("DELETE FROM timelines WHERE key NOT IN (SELECT digest FROM keys)")
        connection.execute("DELETE FROM programs WHERE digest NOT IN (SELECT program FROM keys)")
    return removed


def _key_row(key: ProfileKey) -> tuple[str | int, ...]:
    shape = mesh_shape_text(key.mesh_shape)
    return key.program, key.program_length, shape, key.hosts, key.device_kind, key.jaxlib_version, key.xla_flags


def _key(fields: Iterable[object]) -> ProfileKey:
    program, length, mesh_shape, *rest = fields
    return ProfileKey(program, length, mesh_shape_from(mesh_shape), *rest)  # pyright: ignore[reportArgumentType]


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]
