"""Several writers, writers that are killed, and disks that cannot be written: no finished measurement is lost."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from alpa_cfp.database import DatabaseWriteError, ProfileDatabase, opening
from unit.alpa_cfp.database.profiles import key_of, make_database, measured, program_of

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parents[3]
# Writes profiles of keys FIRST, FIRST + 1, ... and says after each put which it was.
WRITER = """
import sys
from unit.alpa_cfp.database.profiles import key_of, measured, program_of
from alpa_cfp.database import ProfileDatabase
path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
database = ProfileDatabase.open(path)
print("ready", flush=True)
sys.stdin.readline()
for number in range(first, first + count):
    database.put(key_of(number), measured(1.0 + number), program_text=program_of(number))
    print(number, flush=True)
"""
# Only opens the database, once it is told to.
OPENER = WRITER.replace("database =", "print('ready', flush=True); sys.stdin.readline(); database =", 1)


def start(program: str, path: Path, first: int, count: int) -> subprocess.Popen[str]:
    """A process that runs one of these programs and waits for a line before it writes."""
    search = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path), str(first), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": search},
    )
    assert process.stdout is not None
    return process


def say_go(process: subprocess.Popen[str]) -> None:
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("\n")
    process.stdin.flush()


def test_two_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    writers = [start(WRITER, path, first, 50) for first in (0, 50)]
    for writer in writers:
        say_go(writer)
    for writer in writers:
        writer.communicate(timeout=120)
        assert writer.returncode == 0
    with ProfileDatabase.open(path) as database:
        expected = {key_of(number): measured(1.0 + number) for number in range(100)}
        assert dict(database.items()) == expected
        assert database.program_text(key_of(99)) == program_of(99)


def test_processes_that_find_the_same_damaged_file_set_it_aside_once(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    path.write_bytes(b"garbage" * 1000)
    openers = [start(OPENER, path, first, 1) for first in range(3)]
    for opener in openers:
        say_go(opener)
    for opener in openers:
        opener.communicate("\n", timeout=120)
        assert opener.returncode == 0
    assert len(list(tmp_path.glob("*.damaged-*"))) == 1
    with ProfileDatabase.open(path) as database:
        assert database.keys() == sorted(key_of(number) for number in range(3))


def killed_writer(path: Path, after: int) -> list[int]:
    """The puts that had returned in a process that was killed in the midst of writing."""
    with start(WRITER, path, 0, 100_000) as writer:
        say_go(writer)
        said = [writer.stdout.readline() for _ in range(after)]
        os.kill(writer.pid, signal.SIGKILL)
        said += writer.stdout.read().splitlines()
        assert writer.wait(60) == -signal.SIGKILL
    return [int(number) for number in said if number.strip()]


@pytest.mark.parametrize("after", [1, 20])
def test_a_killed_process_loses_no_profile_that_it_had_put(tmp_path: Path, after: int) -> None:
    path = tmp_path / "profiles.sqlite"
    put = killed_writer(path, after)
    assert len(put) >= after
    with ProfileDatabase.open(path) as database:
        for number in put:
            assert database.get(key_of(number)) == measured(1.0 + number)
            assert database.program_text(key_of(number)) == program_of(number)
        # The put that it was killed in is there or not; nothing else is.
        assert len(put) <= len(database.keys()) <= len(put) + 1
    assert list(tmp_path.glob("*.damaged-*")) == []


def test_what_a_killed_process_left_can_be_read_without_changing_it(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    put = killed_writer(path, 5)
    assert Path(f"{path}-wal").stat().st_size > 0
    before = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    with ProfileDatabase.open(path, readonly=True) as database:
        assert set(database.keys()) >= {key_of(number) for number in put}
    assert (path.read_bytes(), Path(f"{path}-wal").read_bytes()) == before


def fill_disk(database: ProfileDatabase) -> None:
    """Let the file grow no further: SQLite then answers as on a full disk."""
    connection = database._connection
    connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")


def free_disk(database: ProfileDatabase) -> None:
    database._connection.execute("PRAGMA max_page_count = 1000000")


LARGE = "x" * 20_000  # does not fit into the pages that are there


def test_a_full_disk_is_said_once_and_the_profiles_are_used_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = make_database(tmp_path / "profiles.sqlite")
    new = {key_of(100 + number): measured(machine=LARGE) for number in range(3)}
    with ProfileDatabase.open(tmp_path / "profiles.sqlite") as database:
        fill_disk(database)
        for number, (key, profile) in enumerate(new.items()):
            database.put(key, profile, program_text=program_of(100 + number))
        (warning,) = caplog.messages
        assert "could not be written to the profile database" in warning
        assert "disk is full" in warning
        assert "lost when this process ends" in warning
        assert dict(database.items()) == {**content, **new}
        assert database.get(key_of(100)) == new[key_of(100)]
        assert database.program_text(key_of(100)) == program_of(100)
        assert len(database._unsaved) == 3
        assert not database.keeps_results
        database.export_json(tmp_path / "saved.json")
    with ProfileDatabase.open(tmp_path / "profiles.sqlite") as database:
        assert dict(database.items()) == content
        assert database.import_json(tmp_path / "saved.json") == 3


def test_what_a_full_disk_refused_is_written_when_there_is_room_again(tmp_path: Path) -> None:
    make_database(tmp_path / "profiles.sqlite", 1)
    with ProfileDatabase.open(tmp_path / "profiles.sqlite") as database:
        fill_disk(database)
        database.put(key_of(1), measured(machine=LARGE))
        free_disk(database)
        database.put(key_of(2), measured())
        assert database.keeps_results
    with ProfileDatabase.open(tmp_path / "profiles.sqlite", readonly=True) as database:
        assert database.keys() == sorted(key_of(number) for number in range(3))


def test_closing_is_the_last_attempt_to_write(tmp_path: Path) -> None:
    make_database(tmp_path / "profiles.sqlite", 1)
    database = ProfileDatabase.open(tmp_path / "profiles.sqlite")
    fill_disk(database)
    database.put(key_of(1), measured(machine=LARGE))
    free_disk(database)
    database.close()
    with ProfileDatabase.open(tmp_path / "profiles.sqlite", readonly=True) as database:
        assert database.get(key_of(1)) == measured(machine=LARGE)


def test_an_import_into_a_full_disk_is_an_error_and_adds_nothing(tmp_path: Path) -> None:
    content = make_database(tmp_path / "profiles.sqlite", 1)
    make_database(tmp_path / "other.sqlite", 60)
    with ProfileDatabase.open(tmp_path / "profiles.sqlite") as database:
        fill_disk(database)
        with pytest.raises(DatabaseWriteError, match=r"merge\(\) did not change .*disk is full.*Free space"):
            database.merge(tmp_path / "other.sqlite")
        assert dict(database.items()) == content


def test_pruning_takes_what_is_unsaved_too(tmp_path: Path) -> None:
    make_database(tmp_path / "profiles.sqlite", 1)
    with ProfileDatabase.open(tmp_path / "profiles.sqlite") as database:
        fill_disk(database)
        database.put(key_of(1, device_kind="H100"), measured(machine=LARGE))
        database.put(key_of(2), measured(machine=LARGE))
        assert database.prune(device_kind="H100") == 1
        assert database.keys() == sorted([key_of(0), key_of(2)])


def test_a_writer_that_holds_the_lock_too_long_delays_profiles_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(opening, "BUSY_TIMEOUT_S", 0.05)
    with ProfileDatabase.open(tmp_path / "profiles.sqlite") as database:
        with closing(sqlite3.connect(tmp_path / "profiles.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            database.put(key_of(1), measured())
            assert len(database._unsaved) == 1
            assert "database is locked" in caplog.text
        database.put(key_of(2), measured())
        assert len(database._unsaved) == 0


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_moved_away_while_open_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, replaced: bool
) -> None:
    path = tmp_path / "profiles.sqlite"
    content = make_database(path, 2)
    with ProfileDatabase.open(path) as database:
        path.rename(tmp_path / "moved.sqlite")
        if replaced:
            make_database(path, 1)
        database.put(key_of(100), measured())
        assert dict(database.items()) == {**content, key_of(100): measured()}
        assert not database.keeps_results
        assert "was moved or deleted while it was open" in caplog.text


def test_where_no_file_can_be_made_planning_goes_on_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with ProfileDatabase.open(tmp_path / "file" / "profiles.sqlite") as database:
        database.put(key_of(), measured())
        assert database.get(key_of()) == measured()
        assert not database.keeps_results
    assert "cannot be opened for writing" in caplog.text
    assert "in memory only" in caplog.text


def test_a_file_that_cannot_be_opened_for_writing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # As on a read-only file system; permissions would not stop the tests of an administrator.
    path = tmp_path / "profiles.sqlite"
    content = make_database(path)
    before = path.read_bytes()

    def refuse(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("CREATE TABLE refused (x)")

    monkeypatch.setattr(opening, "_use_log", refuse)
    with ProfileDatabase.open(path) as database:
        assert dict(database.items()) == content
        database.put(key_of(100), measured())
        assert database.get(key_of(100)) == measured()
        assert not database.keeps_results
    assert path.read_bytes() == before
    assert f"Planning goes on with the {len(content)} keys" in caplog.text
