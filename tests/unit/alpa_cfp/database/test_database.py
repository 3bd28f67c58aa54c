"""The profile database: what is put is there, in order, with all its sessions; where it lies; who may use it."""

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given

from alpa_cfp.database import (
    DatabaseClosedError,
    DatabaseMissingError,
    DatabaseReadonlyError,
    Profile,
    ProfileDatabase,
    ProfileKey,
    ProfileValueError,
    PruneError,
    combined,
    database_path,
)
from unit.alpa_cfp.database import profiles as some
from unit.alpa_cfp.database.profiles import NOON, key_of, make_database, measured, number_of_sessions, program_of

pytestmark = pytest.mark.slow

LATER = "2026-03-02T12:00:00Z"


@pytest.fixture
def database() -> ProfileDatabase:
    return ProfileDatabase.in_memory()


@given(some.contents)
def test_what_is_put_comes_back_equal(content: list[tuple[ProfileKey, Profile]]) -> None:
    with some.filled(content) as database:
        for key in {key for key, _ in content}:
            sessions = [profile for other, profile in content if other == key]
            assert set(database.sessions(key)) == set(sessions)
            assert database.get(key) == combined(sessions)


@given(some.contents)
def test_keys_and_items_come_in_the_order_of_the_keys(content: list[tuple[ProfileKey, Profile]]) -> None:
    with some.filled(content) as database:
        expected = sorted({key for key, _ in content})
        assert database.keys() == expected
        assert [key for key, _ in database.items()] == expected
        assert [profile for _, profile in database.items()] == [database.get(key) for key in expected]


def test_a_database_that_is_opened_again_holds_the_same(tmp_path: Path) -> None:
    content = make_database(tmp_path / "profiles.sqlite")
    with ProfileDatabase.open(tmp_path / "profiles.sqlite") as database:
        assert dict(database.items()) == content
        assert database.keeps_results


def test_a_closed_database_is_one_file(tmp_path: Path) -> None:
    make_database(tmp_path / "profiles.sqlite")
    assert [path.name for path in tmp_path.iterdir()] == ["profiles.sqlite"]


def test_a_key_without_a_profile_gives_none(database: ProfileDatabase) -> None:
    assert database.get(key_of()) is None
    assert database.sessions(key_of()) == ()


def test_a_second_profile_of_a_key_adds_its_samples(database: ProfileDatabase) -> None:
    database.put(key_of(), measured(3.0, created_at=LATER))
    database.put(key_of(), measured(1.0, 2.0))
    found = database.get(key_of())
    assert found is not None
    assert found.samples_s == (1.0, 2.0, 3.0)
    assert database.sessions(key_of()) == (measured(1.0, 2.0), measured(3.0, created_at=LATER))


def test_a_session_that_is_put_twice_is_there_once(database: ProfileDatabase) -> None:
    database.put(key_of(), measured())
    database.put(key_of(), measured())
    assert number_of_sessions(database) == 1


def test_the_text_of_a_program_is_kept_once_and_compressed(tmp_path: Path) -> None:
    with ProfileDatabase.open(tmp_path / "profiles.sqlite") as database:
        keys = [key_of(mesh_shape=(axis,)) for axis in range(1, 9)]
        for key in keys:
            database.put(key, measured(), program_text=program_of())
        assert {database.program_text(key) for key in keys} == {program_of()}
        assert database.program_text(keys[0].program) == program_of()
    with sqlite3.connect(tmp_path / "profiles.sqlite") as connection:
        sizes = [size for (size,) in connection.execute("SELECT length(text) FROM programs")]
    assert len(sizes) == 1
    assert sizes[0] < len(program_of()) / 4


def test_the_text_of_a_program_may_come_later(database: ProfileDatabase) -> None:
    database.put(key_of(), measured())
    assert database.program_text(key_of()) is None
    database.put(key_of(), measured(created_at=LATER), program_text=program_of())
    assert database.program_text(key_of()) == program_of()


def test_the_text_of_another_program_is_refused(database: ProfileDatabase) -> None:
    with pytest.raises(ProfileValueError, match="the key is of another program"):
        database.put(key_of(1), measured(), program_text=program_of(2))
    assert database.get(key_of(1)) is None


def test_keys_can_be_chosen_by_their_fields(database: ProfileDatabase) -> None:
    plain, gpu, old = key_of(), key_of(device_kind="H100"), key_of(jaxlib_version="0.10.1")
    for key in (plain, gpu, old):
        database.put(key, measured())
    assert database.keys(device_kind="H100") == [gpu]
    assert database.keys(jaxlib_version="0.10.1") == [old]
    assert database.keys(device_kind="H100", jaxlib_version="0.10.1") == []
    assert [key for key, _ in database.items(device_kind="H100")] == [gpu]


def fill_for_pruning(database: ProfileDatabase) -> None:
    database.put(key_of(1), measured(), program_text=program_of(1))
    database.put(key_of(1), measured(created_at=LATER), program_text=program_of(1))
    database.put(key_of(2, device_kind="H100"), measured(), program_text=program_of(2))
    database.put(key_of(3, jaxlib_version="0.10.1"), measured(created_at=LATER), program_text=program_of(3))


def test_pruning_by_time_removes_older_sessions_only(database: ProfileDatabase) -> None:
    fill_for_pruning(database)
    assert database.prune(before="2026-03-02T14:00:00+02:00") == 2
    assert database.sessions(key_of(1)) == (measured(created_at=LATER),)
    assert database.keys() == sorted([key_of(1), key_of(3, jaxlib_version="0.10.1")])


def test_pruning_removes_the_texts_that_nothing_needs_any_more(database: ProfileDatabase) -> None:
    fill_for_pruning(database)
    database.prune(device_kind="H100")
    assert database.program_text(key_of(2)) is None
    assert database.program_text(key_of(1)) == program_of(1)


def test_pruning_by_several_conditions_needs_all_of_them(database: ProfileDatabase) -> None:
    fill_for_pruning(database)
    assert database.prune(before=LATER, jaxlib_version="0.10.1") == 0
    assert database.prune(device_kind="cpu", jaxlib_version="0.10.1") == 1
    assert number_of_sessions(database) == 3


def test_pruning_without_a_condition_is_refused(database: ProfileDatabase) -> None:
    fill_for_pruning(database)
    with pytest.raises(PruneError, match="Give before=, device_kind= or jaxlib_version="):
        database.prune()
    assert number_of_sessions(database) == 4


def test_pruning_refuses_what_is_no_time(database: ProfileDatabase) -> None:
    with pytest.raises(ProfileValueError, match="before is 'last week'"):
        database.prune(before="last week")


def test_a_file_opened_read_only_stays_as_it_is_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    content = make_database(path)
    before = path.read_bytes(), path.stat().st_mtime_ns
    with ProfileDatabase.open(path, readonly=True) as database:
        assert dict(database.items()) == content
        assert database.readonly
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [found.name for found in tmp_path.iterdir()] == ["profiles.sqlite"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("put", lambda database: database.put(key_of(), measured())),
        ("prune", lambda database: database.prune(before=NOON)),
        ("merge", lambda database: database.merge(database.path)),
    ],
)
def test_a_database_opened_read_only_refuses_to_change(
    tmp_path: Path, name: str, change: Callable[[ProfileDatabase], None]
) -> None:
    make_database(tmp_path / "profiles.sqlite")
    with (
        ProfileDatabase.open(tmp_path / "profiles.sqlite", readonly=True) as database,
        pytest.raises(DatabaseReadonlyError, match=rf"^{name}\(\) would change .*profiles.sqlite"),
    ):
        change(database)


def test_a_missing_file_is_not_made_when_opened_read_only(tmp_path: Path) -> None:
    with pytest.raises(DatabaseMissingError, match=r"there is no profile database at .*Measure first"):
        ProfileDatabase.open(tmp_path / "none" / "profiles.sqlite", readonly=True)
    assert list(tmp_path.iterdir()) == []


def test_a_database_opened_read_only_does_not_see_later_changes(tmp_path: Path) -> None:
    content = make_database(tmp_path / "profiles.sqlite")
    with (
        ProfileDatabase.open(tmp_path / "profiles.sqlite") as writer,
        ProfileDatabase.open(tmp_path / "profiles.sqlite", readonly=True) as snapshot,
    ):
        writer.put(key_of(99), measured())
        assert dict(snapshot.items()) == content


def test_a_database_opened_read_only_sees_what_its_writer_has_put_so_far(tmp_path: Path) -> None:
    with ProfileDatabase.open(tmp_path / "profiles.sqlite") as writer:
        writer.put(key_of(), measured())
        with ProfileDatabase.open(tmp_path / "profiles.sqlite", readonly=True) as snapshot:
            assert snapshot.get(key_of()) == measured()


def test_two_openings_of_one_file_see_each_others_profiles(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    with ProfileDatabase.open(path) as one, ProfileDatabase.open(path) as other:
        one.put(key_of(1), measured())
        other.put(key_of(2), measured())
        assert one.keys() == other.keys() == sorted([key_of(1), key_of(2)])


def test_threads_share_one_database(tmp_path: Path) -> None:
    with ProfileDatabase.open(tmp_path / "profiles.sqlite") as database:
        threads = [threading.Thread(target=database.put, args=(key_of(number), measured())) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(database.keys()) == 16


def test_a_closed_database_says_so(tmp_path: Path) -> None:
    database = ProfileDatabase.open(tmp_path / "profiles.sqlite")
    database.close()
    database.close()
    for use in (lambda: database.get(key_of()), lambda: database.put(key_of(), measured()), database.keys):
        with pytest.raises(DatabaseClosedError, match="was closed"):
            use()


def test_a_forked_process_is_told_to_open_its_own(database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(DatabaseClosedError, match="forked"):
        database.get(key_of())


def test_the_file_lies_in_the_cache_unless_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALPA_CFP_DATABASE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert database_path() == Path("/home/someone/.cache/alpa_cfp/profiles.sqlite")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says its specification
    assert database_path() == Path("/home/someone/.cache/alpa_cfp/profiles.sqlite")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert database_path() == Path("/cache/alpa_cfp/profiles.sqlite")
    monkeypatch.setenv("ALPA_CFP_DATABASE", "~/mine.sqlite")
    assert database_path() == Path("/home/someone/mine.sqlite")
    assert database_path("/given.sqlite") == Path("/given.sqlite")


def test_directories_on_the_way_are_made(tmp_path: Path) -> None:
    with ProfileDatabase.open(tmp_path / "a" / "b" / "profiles.sqlite") as database:
        database.put(key_of(), measured())
        assert database.keeps_results
    assert (tmp_path / "a" / "b" / "profiles.sqlite").is_file()


def test_a_path_may_hold_any_character(tmp_path: Path) -> None:
    path = tmp_path / "100% a?b#c größer.sqlite"
    content = make_database(path, 2)
    with ProfileDatabase.open(path, readonly=True) as database:
        assert dict(database.items()) == content
