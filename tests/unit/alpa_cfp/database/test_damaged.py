"""Files that are no sound database: set aside whole with a warning, and planning goes on; refused when read-only."""

import logging
import re
import sqlite3
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from alpa_cfp.database import DatabaseDamagedError, ProfileDatabase, opening
from alpa_cfp.database.schema import transaction
from unit.alpa_cfp.database.profiles import key_of, make_database, measured


class Sound:
    """The bytes of a sound database, and what is in it; too long to be shown whole by a test that fails."""

    def __init__(self, path: Path) -> None:
        self.profiles = make_database(path)
        self.content = path.read_bytes()

    def __repr__(self) -> str:
        return f"Sound({len(self.content)} bytes)"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return Sound(tmp_path_factory.mktemp("sound") / "profiles.sqlite")


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    # Hundreds of databases are made here, and none must survive the machine.
    use_log = opening._use_log

    def without_sync(connection: sqlite3.Connection) -> None:
        use_log(connection)
        connection.execute("PRAGMA synchronous = OFF")

    monkeypatch.setattr(opening, "_use_log", without_sync)


def file_in(directory: str | Path, content: bytes) -> Path:
    """A database with these bytes."""
    path = Path(directory) / "profiles.sqlite"
    path.write_bytes(content)
    return path


def files_aside(path: Path) -> list[Path]:
    """What was set aside of a database."""
    return sorted(path.parent.glob(f"{path.name}.damaged-*"))


def assert_usable(database: ProfileDatabase) -> None:
    """A new profile can be put and is kept."""
    database.put(key_of(1000), measured(7.0))
    assert database.get(key_of(1000)) == measured(7.0)
    assert database.keeps_results


@given(cut=st.floats(0, 1, exclude_min=True, exclude_max=True))
@example(cut=1e-9)
@example(cut=0.999999)
def test_a_file_cut_off_anywhere_is_set_aside(sound: Sound, cut: float) -> None:
    length = len(sound.content)
    rest = sound.content[: max(1, min(int(cut * length), length - 1))]
    with tempfile.TemporaryDirectory() as directory:
        path = file_in(directory, rest)
        with ProfileDatabase.open(path) as database:
            assert database.keys() == []
            assert_usable(database)
        assert [aside.read_bytes() for aside in files_aside(path)] == [rest]


@given(garbage=st.binary(min_size=1, max_size=3000))
@example(garbage=b"\0")
@example(garbage=bytes(511))
@example(garbage=bytes(4096))
@example(garbage=b"SQLite format 3\0")
def test_random_bytes_are_set_aside(garbage: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = file_in(directory, garbage)
        with ProfileDatabase.open(path) as database:
            assert database.keys() == []
            assert_usable(database)
        assert [aside.read_bytes() for aside in files_aside(path)] == [garbage]


@given(place=st.floats(0, 1, exclude_max=True), changed=st.integers(1, 255))
def test_a_changed_byte_never_gives_a_wrong_profile(sound: Sound, place: float, changed: int) -> None:
    content = sound.content
    # Both the header, in which most bytes matter, and the rest are hit often.
    position = int(place * 200) if changed % 2 else int(place * len(content))
    bad = bytearray(content)
    bad[position] ^= changed
    with tempfile.TemporaryDirectory() as directory:
        path = file_in(directory, bytes(bad))
        with ProfileDatabase.open(path) as database:
            found = dict(database.items())
            assert found in ({}, sound.profiles)
            assert bool(found) != bool(files_aside(path))
            database.put(key_of(1000), measured(7.0))
            assert database.get(key_of(1000)) == measured(7.0)


def run_sql(path: Path, *statements: str) -> None:
    """Change a file behind the database's back."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


DAMAGE: dict[str, tuple[tuple[str, ...], str]] = {
    "foreign": (("PRAGMA application_id = 1234",), "of another application"),
    "unnamed": (("PRAGMA application_id = 0",), "of another application"),
    "newer": (("PRAGMA user_version = 3",), "its schema is version 3, from a newer release"),
    "no_version": (("PRAGMA user_version = 0",), "lacks tables"),
    "no_table": (("DROP TABLE sessions",), "lacks tables"),
    "no_column": (("DROP TABLE keys", "CREATE TABLE keys (x)"), "no such column"),
    "changed_sample": (
        ("UPDATE sessions SET profile = replace(profile, '0.002', '0.001')",),
        "a profile of it has changed",
    ),
    "changed_time": (
        ("UPDATE sessions SET created_at = '2030-01-01T00:00:00.000000Z'",),
        "a profile of it has changed",
    ),
    "changed_key": (("UPDATE keys SET device_kind = 'H100'",), "a key of it has changed"),
    "changed_shape": (("UPDATE keys SET mesh_shape = 'flat'",), "does not make sense: mesh_shape"),
    "no_utf8": (("UPDATE sessions SET profile = CAST(x'ff' AS TEXT)",), "UTF-8"),
    # Python cannot decode the message in which SQLite quotes this.
    "bytes_in_schema": (
        ("PRAGMA writable_schema = ON", "UPDATE sqlite_master SET sql = CAST(x'4352ff' AS TEXT) WHERE name = 'keys'"),
        "malformed|decode",
    ),
    "no_key": (("DELETE FROM keys",), "a profile of it has changed"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_file_that_is_no_sound_database_is_set_aside_with_its_reason(
    tmp_path: Path, sound: Sound, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "profiles.sqlite"
    path.write_bytes(sound.content)
    statements, reason = DAMAGE[kind]
    run_sql(path, *statements)
    damaged_bytes = path.read_bytes()
    with caplog.at_level(logging.WARNING), ProfileDatabase.open(path) as database:
        assert database.keys() == []
        assert_usable(database)
    (aside,) = files_aside(path)
    assert aside.read_bytes() == damaged_bytes
    (warning,) = caplog.messages
    assert re.search(reason, warning)
    assert f"set aside, unchanged, as {aside}" in warning


@pytest.mark.parametrize("kind", DAMAGE)
def test_opened_read_only_such_a_file_is_refused_and_left_alone(tmp_path: Path, sound: Sound, kind: str) -> None:
    path = tmp_path / "profiles.sqlite"
    path.write_bytes(sound.content)
    statements, reason = DAMAGE[kind]
    run_sql(path, *statements)
    before = path.read_bytes()
    with pytest.raises(DatabaseDamagedError, match=reason):
        ProfileDatabase.open(path, readonly=True)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("content", [b"", b"no database" * 200])
def test_opened_read_only_a_file_without_a_database_is_refused(content: bytes, tmp_path: Path) -> None:
    path = file_in(tmp_path, content)
    with pytest.raises(DatabaseDamagedError, match=r"it is empty|not a database"):
        ProfileDatabase.open(path, readonly=True)
    assert path.read_bytes() == content


def test_opened_read_only_a_file_that_was_cut_off_is_refused(sound: Sound, tmp_path: Path) -> None:
    path = file_in(tmp_path, sound.content[:-100])
    with pytest.raises(DatabaseDamagedError, match=r"shorter than it says|finds in it|malformed"):
        ProfileDatabase.open(path, readonly=True)


def test_damage_to_texts_that_are_not_read_at_once_is_found_all_the_same(tmp_path: Path, sound: Sound) -> None:
    path = file_in(tmp_path, sound.content)
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'programs'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    content = bytearray(sound.content)
    content[(page - 1) * size : page * size] = b"\x55" * size
    path.write_bytes(content)
    with ProfileDatabase.open(path) as database:
        assert database.keys() == []
    assert [aside.read_bytes() for aside in files_aside(path)] == [bytes(content)]


def test_an_empty_file_is_a_new_database(tmp_path: Path) -> None:
    path = file_in(tmp_path, b"")
    with ProfileDatabase.open(path) as database:
        assert_usable(database)
    assert files_aside(path) == []


def test_a_file_whose_first_writer_was_killed_before_it_made_tables_is_a_new_database(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    run_sql(path, "PRAGMA journal_mode = WAL")
    assert path.stat().st_size > 0
    with ProfileDatabase.open(path) as database:
        assert_usable(database)
    assert files_aside(path) == []


def test_the_database_of_another_program_is_kept_whole(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    run_sql(path, "CREATE TABLE sessions (mine)", "INSERT INTO sessions VALUES ('precious')")
    ProfileDatabase.open(path).close()
    (aside,) = files_aside(path)
    with closing(sqlite3.connect(aside)) as connection:
        assert connection.execute("SELECT mine FROM sessions").fetchall() == [("precious",)]


def test_nothing_that_was_set_aside_before_is_overwritten(tmp_path: Path) -> None:
    path, now = tmp_path / "profiles.sqlite", datetime(2026, 3, 1, 12, tzinfo=UTC)
    for content in ("first", "second", "third"):
        path.write_text(content)
        opening.set_aside(path, now)
    assert {aside.name: aside.read_text() for aside in files_aside(path)} == {
        "profiles.sqlite.damaged-20260301T120000Z": "first",
        "profiles.sqlite.damaged-20260301T120000Z-2": "second",
        "profiles.sqlite.damaged-20260301T120000Z-3": "third",
    }


def test_the_log_of_a_database_is_set_aside_with_it(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    path.write_text("database")
    Path(f"{path}-wal").write_text("log")
    aside = opening.set_aside(path)
    assert Path(f"{aside}-wal").read_text() == "log"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_damaged_file_that_cannot_be_renamed_stays_and_planning_goes_on_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(opening, "set_aside", refuse)
    path = file_in(tmp_path, b"garbage" * 1000)
    with ProfileDatabase.open(path) as database:
        database.put(key_of(), measured())
        assert database.get(key_of()) == measured()
        assert not database.keeps_results
    assert path.read_bytes() == b"garbage" * 1000
    assert any("cannot be renamed" in message and "in memory only" in message for message in caplog.messages)


def test_damage_that_is_found_later_is_an_error_and_not_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    content = make_database(path)
    with ProfileDatabase.open(path) as database:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection, transaction(connection):
            connection.execute("UPDATE programs SET text = x'00'")
            connection.execute("UPDATE sessions SET profile = '{}'")
        with pytest.raises(DatabaseDamagedError, match="must have that digest"):
            database.program_text(next(iter(content)))
        with pytest.raises(DatabaseDamagedError, match="exactly the fields"):
            database.get(next(iter(content)))
