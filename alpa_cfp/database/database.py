"""The profile database: the measured profiles of each program on each kind of mesh, kept for later plans.

Takes keys and profiles (values.py) and gives them back bit for bit, in the keys' order. Invariants:

- A profile is in the file when `put` returns, unless a warning was logged: where the file cannot be written (full disk,
  lock, permissions) the profile is used from memory, and each later `put`, and `close`, tries again to write it.
- No measurement is replaced: a second profile of a key is a further session of it. The same session put twice (equal
  in every field, its time included) is there once, so merging is a union.
- A database opened read-only is a snapshot: it neither changes the file nor sees later changes, so repeated plans from
  it are equal.

All threads of a process can share one object; each process opens its own. SQLite's log needs a local file system: on
several machines, use a file each and `merge` them.
"""

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self, TypeVar

from alpa_cfp.database import exchange, opening, schema
from alpa_cfp.database.errors import (
    DatabaseClosedError,
    DatabaseDamagedError,
    DatabaseReadonlyError,
    DatabaseUnavailableError,
    DatabaseWriteError,
    ProfileValueError,
    PruneError,
    not_kept_warning,
)
from alpa_cfp.database.schema import Record
from alpa_cfp.database.timelines import StepTimeline, timeline_text
from alpa_cfp.database.values import Profile, ProfileKey, Status, canonical_time, combined, session_order, text_digest

logger = logging.getLogger(__name__)
T = TypeVar("T")


class ProfileDatabase:
    """Profiles by key; made by `open`, `open_to_change` or `in_memory`; a context manager that closes it."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None, *, readonly: bool, keeps: bool) -> None:
        self._connection: sqlite3.Connection | None = connection
        self._path = path
        self._readonly = readonly
        self._keeps = keeps
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._unsaved: list[Record] = []
        self._last_warning = ""
        self._file = opening.file_identity(path) if keeps and path is not None else None

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None, *, readonly: bool = False) -> "ProfileDatabase":
        """Open the database at a path, at $ALPA_CFP_DATABASE, or in the user's cache directory.

        For writing, a missing file is made, and one that is damaged, foreign or from a newer release is set aside with
        a warning. Where nothing can be written, a warning is logged and the database lives in memory (`keeps_results`).

        Raises:
            DatabaseMissingError, DatabaseDamagedError, DatabaseUnavailableError: with `readonly` only.
        """
        where = opening.database_path(path)
        if readonly:
            return cls(opening.open_snapshot(where), where, readonly=True, keeps=False)
        connection, keeps = opening.open_for_writing(where)
        return cls(connection, where, readonly=False, keeps=keeps)

    @classmethod
    def open_to_change(cls, path: str | os.PathLike[str] | None = None) -> "ProfileDatabase":
        """Open the database for changes that must reach the file. A missing file is made; paths are as in `open`.

        Raises:
            DatabaseDamagedError, DatabaseUnavailableError: the file cannot be used; it is left as it is.
        """
        where = opening.database_path(path)
        return cls(opening.open_to_change(where), where, readonly=False, keeps=True)

    @classmethod
    def in_memory(cls) -> "ProfileDatabase":
        """An empty database without a file."""
        return cls(opening.connect_in_memory(), None, readonly=False, keeps=False)

    @property
    def path(self) -> Path | None:
        """The file, or None for a database in memory."""
        return self._path

    @property
    def readonly(self) -> bool:
        """Whether it is a snapshot that cannot be written to."""
        return self._readonly

    @property
    def keeps_results(self) -> bool:
        """Whether everything that was put is in the file."""
        return self._keeps and not self._unsaved

    def get(self, key: ProfileKey) -> Profile | None:
        """The profile of a key, with the samples of all its sessions (`combined`), or None."""
        sessions = self.sessions(key)
        return combined(sessions) if sessions else None

    def sessions(self, key: ProfileKey) -> tuple[Profile, ...]:
        """Each session of a key as it was put, oldest first."""
        with self._lock:
            found = self._read(lambda connection: schema.sessions_of(connection, key))
            unsaved = [record.profile for record in self._unsaved if record.key == key]
        return _in_order([*found, *unsaved])

    def program_text(self, program: ProfileKey | str) -> str | None:
        """The canonical text of a key's program (or of a digest), or None if it was not put."""
        digest = program if isinstance(program, str) else program.program
        with self._lock:
            unsaved = (record.program_text for record in self._unsaved if record.key.program == digest)
            text = next((text for text in unsaved if text is not None), None)
            return text if text is not None else self._read(lambda connection: schema.text_of(connection, digest))

    def timeline(self, key: ProfileKey) -> StepTimeline | None:
        """The timeline of a key's program, or None if none was put; of several the one with the smallest digest."""
        with self._lock:
            unsaved = [record.timeline for record in self._unsaved if record.key == key]
            found = [self._read(lambda connection: schema.timeline_of(connection, key)), *unsaved]
        return min(
            (each for each in found if each is not None),
            key=lambda each: text_digest(timeline_text(each)),
            default=None,
        )

    def put(
        self,
        key: ProfileKey,
        profile: Profile,
        *,
        program_text: str | None = None,
        timeline: StepTimeline | None = None,
    ) -> None:
        """Add a session to a key. It is on disk when this returns, or a warning was logged.

        Args:
            key: the key.
            profile: the profile of this session.
            program_text: the program's canonical text; kept once for all keys that have it.
            timeline: the program's timeline; kept once for the key.

        Raises:
            ProfileValueError: the text is not the one that the key was made from.
            DatabaseReadonlyError: the database was opened read-only.
        """
        _check_text(key, program_text)
        with self._lock:
            self._connection_for("put()")
            self._unsaved.append(Record(key, profile, program_text, timeline))
            self._save()

    def keys(self, *, device_kind: str | None = None, jaxlib_version: str | None = None) -> list[ProfileKey]:
        """The keys of a device kind and a version of jaxlib (None for any), in order."""
        with self._lock:
            found = {*self._read(schema.all_keys), *(record.key for record in self._unsaved)}
        return sorted(key for key in found if _matches(key, device_kind, jaxlib_version))

    def items(
        self, *, device_kind: str | None = None, jaxlib_version: str | None = None
    ) -> Iterator[tuple[ProfileKey, Profile]]:
        """Keys with their combined profiles, in the keys' order, as they are now."""
        for key, sessions in self._sessions_by_key(device_kind, jaxlib_version).items():
            yield key, combined(sessions)

    def export_json(
        self, path: str | os.PathLike[str], *, device_kind: str | None = None, jaxlib_version: str | None = None
    ) -> int:
        """Write everything to a JSON file and give the number of sessions; equal content gives equal bytes."""
        with self._lock:
            by_key = self._sessions_by_key(device_kind, jaxlib_version)
            texts = {key.program: self.program_text(key) for key in by_key}
            timelines = {key: self.timeline(key) for key in by_key}
        text = exchange.export_text(
            by_key,
            {digest: text for digest, text in texts.items() if text is not None},
            {key: timeline for key, timeline in timelines.items() if timeline is not None},
        )
        exchange.write_export(Path(path), text)
        return sum(map(len, by_key.values()))

    def import_json(self, path: str | os.PathLike[str]) -> int:
        """Add the content of an export, all or nothing, and give the number of sessions that were new.

        Raises:
            ExchangeFormatError: the file is no export.
            DatabaseWriteError: the database could not be written.
        """
        records = exchange.read_export(Path(path))
        with self._changing("import_json()") as connection:
            return schema.insert(connection, records)

    def merge(self, other: str | os.PathLike[str]) -> int:
        """Add the content of another database file, all or nothing, and give the number of sessions that were new.

        The other file is not changed; a missing or damaged one is an error, as in `open(readonly=True)`.
        """
        path = opening.database_path(other)
        with closing(opening.open_snapshot(path)) as source:
            try:
                keys = schema.all_keys(source)
                texts = {key.program: schema.text_of(source, key.program) for key in keys}
                timelines = {key: schema.timeline_of(source, key) for key in keys}
            except ProfileValueError as error:
                raise DatabaseDamagedError(path, str(error)) from error
            records = [
                Record(key, profile, texts[key.program], timelines[key]) for key, profile in schema.all_sessions(source)
            ]
        with self._changing("merge()") as connection:
            return schema.insert(connection, records)

    def prune(
        self,
        *,
        before: str | None = None,
        device_kind: str | None = None,
        jaxlib_version: str | None = None,
        status: Status | None = None,
    ) -> int:
        """Remove the sessions that meet every condition given, and give their number; `before` is an ISO 8601 time.

        Raises:
            PruneError: no condition was given.
            DatabaseWriteError: the database could not be written; nothing was removed.
        """
        if before is None and device_kind is None and jaxlib_version is None and status is None:
            raise PruneError
        time = None if before is None else canonical_time("before", before)
        with self._changing("prune()") as connection:
            self._save()
            keys = set(self.keys(device_kind=device_kind, jaxlib_version=jaxlib_version))
            remaining = [
                record
                for record in self._unsaved
                if record.key not in keys
                or (time is not None and record.profile.created_at >= time)
                or status not in (None, record.profile.status)
            ]
            removed = schema.remove(connection, keys, time, status) + len(self._unsaved) - len(remaining)
            self._unsaved = remaining
            return removed

    def close(self) -> None:
        """Close the file, after a last attempt to write what is unsaved; a second call does nothing."""
        with self._lock:
            if self._connection is None:
                return
            if os.getpid() == self._process:
                if self._unsaved:
                    self._last_warning = ""  # a warning is due, even if an equal one was logged
                    self._save()
                self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sessions_by_key(
        self, device_kind: str | None, jaxlib_version: str | None
    ) -> dict[ProfileKey, tuple[Profile, ...]]:
        by_key: dict[ProfileKey, list[Profile]] = {}
        with self._lock:
            rows = self._read(lambda connection: list(schema.all_sessions(connection)))
            rows += [(record.key, record.profile) for record in self._unsaved]
        for key, profile in rows:
            if _matches(key, device_kind, jaxlib_version):
                by_key.setdefault(key, []).append(profile)
        return {key: _in_order(by_key[key]) for key in sorted(by_key)}

    def _save(self) -> None:
        """Write the unsaved records; logs a warning if that cannot be done now."""
        if not self._unsaved:
            return
        try:
            reason = None
            if self._file is not None and self._path is not None and opening.file_identity(self._path) != self._file:
                reason = "the file was moved or deleted while it was open"  # SQLite would write to it all the same
            else:
                schema.insert(self._connection_for("put()"), self._unsaved)
        except sqlite3.Error as error:
            reason = str(error)
        if reason is not None:
            if reason != self._last_warning:
                logger.warning(not_kept_warning(self._path, reason, len(self._unsaved)))
            self._last_warning = reason
            return
        if len(self._unsaved) > 1:
            logger.info("wrote %d profiles to %s that were in memory only", len(self._unsaved), self._path)
        self._unsaved = []
        self._last_warning = ""

    @contextmanager
    def _changing(self, call: str) -> Iterator[sqlite3.Connection]:
        """The connection, locked for a change of many profiles.

        Raises:
            DatabaseWriteError: the change could not be written.
        """
        with self._lock:
            connection = self._connection_for(call)
            try:
                yield connection
            except sqlite3.Error as error:
                raise DatabaseWriteError(call, self._path, str(error)) from error

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        where = self._path or "the database in memory"
        try:
            return read(self._connection_for(None))
        except ProfileValueError as error:
            raise DatabaseDamagedError(where, str(error)) from error
        except schema.READING_ERRORS as error:
            if schema.is_about_access(error) and self._path is not None:
                raise DatabaseUnavailableError(self._path, str(error)) from error
            raise DatabaseDamagedError(where, str(error)) from error

    def _connection_for(self, change: str | None) -> sqlite3.Connection:
        """The connection, if this process may use it for a call that changes something, or (None) for reading."""
        if os.getpid() != self._process:
            raise DatabaseClosedError.forked(self._path)
        if self._connection is None:
            raise DatabaseClosedError.closed(self._path)
        if change is not None and self._readonly:
            raise DatabaseReadonlyError(change, self._path)
        return self._connection


def _in_order(sessions: Iterable[Profile]) -> tuple[Profile, ...]:
    distinct = set(sessions)
    return tuple(sorted(distinct, key=session_order) if len(distinct) > 1 else distinct)


def _matches(key: ProfileKey, device_kind: str | None, jaxlib_version: str | None) -> bool:
    return device_kind in (None, key.device_kind) and jaxlib_version in (None, key.jaxlib_version)


def _check_text(key: ProfileKey, text: str | None) -> None:
    if text is not None and (text_digest(text) != key.program or len(text) != key.program_length):
        raise ProfileValueError("program_text", text, f"the key is of another program, {key.program}")
