"""A database keeps a timeline beside the profile of a program, and one of an earlier version still opens."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from alpa_cfp.database import DatabaseDamagedError, ExchangeFormatError, ProfileDatabase, StepTimeline
from alpa_cfp.database.timelines import TimelineEntry, totals_of
from unit.alpa_cfp.database.profiles import key_of, make_database, measured, program_of

ENTRIES = (
    TimelineEntry("computing", "product", 0, 2_000, 4_096, count=3, idle_ns=100),
    TimelineEntry("communicating", "all-reduce", 1_000, 3_000, 512, exposed_ns=1_000),
)
TIMELINE = StepTimeline(3e-6, 1.9e-6, 2e-6, 1e-6, 0.1e-6, ENTRIES, totals_of(ENTRIES))
OTHER = replace(TIMELINE, step_s=4e-6)


def with_timeline(path: Path, timeline: StepTimeline = TIMELINE) -> None:
    with ProfileDatabase.open(path) as database:
        database.put(key_of(0), measured(), program_text=program_of(0), timeline=timeline)
        database.put(key_of(1), measured(), program_text=program_of(1))


def of_version_1(path: Path) -> dict:
    """A database as the first version wrote it."""
    content = make_database(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE timelines")
        connection.execute("PRAGMA user_version = 1")
    return content


@pytest.mark.parametrize("readonly", [False, True])
def test_a_timeline_is_given_back_and_a_key_without_one_has_none(tmp_path: Path, readonly: bool) -> None:
    with_timeline(tmp_path / "profiles.sqlite")
    with ProfileDatabase.open(tmp_path / "profiles.sqlite", readonly=readonly) as database:
        assert database.timeline(key_of(0)) == TIMELINE
        assert database.timeline(key_of(1)) is None
        assert database.timeline(key_of(2)) is None


def test_a_database_in_memory_has_timelines_too() -> None:
    with ProfileDatabase.in_memory() as database:
        database.put(key_of(0), measured(), timeline=TIMELINE)
        assert database.timeline(key_of(0)) == TIMELINE


@pytest.mark.parametrize("readonly", [False, True])
def test_a_database_of_the_first_version_opens_with_all_its_profiles(tmp_path: Path, readonly: bool) -> None:
    path = tmp_path / "profiles.sqlite"
    content = of_version_1(path)
    before = path.read_bytes()
    with ProfileDatabase.open(path, readonly=readonly) as database:
        assert dict(database.items()) == content
        assert database.timeline(key_of(0)) is None
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert (path.read_bytes() == before) is readonly


def test_a_database_of_the_first_version_takes_timelines_once_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    content = of_version_1(path)
    with ProfileDatabase.open(path) as database:
        database.put(key_of(0), measured(7.0), timeline=TIMELINE)
    with ProfileDatabase.open(path, readonly=True) as database:
        assert database.timeline(key_of(0)) == TIMELINE
        assert database.keys() == sorted(content)


def test_two_timelines_of_a_key_give_the_same_one_in_either_order(tmp_path: Path) -> None:
    kept = list[StepTimeline | None]()
    for number, (first, second) in enumerate(((TIMELINE, OTHER), (OTHER, TIMELINE))):
        paths = [tmp_path / f"{number}-{name}.sqlite" for name in "ab"]
        with_timeline(paths[0], first)
        with_timeline(paths[1], second)
        with ProfileDatabase.open(paths[0]) as database:
            database.merge(paths[1])
            kept.append(database.timeline(key_of(0)))
    assert kept[0] == kept[1]
    assert kept[0] in (TIMELINE, OTHER)


def test_an_export_has_timelines_and_is_that_of_earlier_versions_without_any(tmp_path: Path) -> None:
    path, export = tmp_path / "profiles.sqlite", tmp_path / "profiles.json"
    with_timeline(path)
    with ProfileDatabase.open(path, readonly=True) as database:
        database.export_json(export)
    with ProfileDatabase.open(tmp_path / "other.sqlite") as other:
        other.import_json(export)
        assert other.timeline(key_of(0)) == TIMELINE
        other.export_json(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == export.read_bytes()
    with ProfileDatabase.in_memory() as without:
        without.put(key_of(1), measured())
        without.export_json(export)
    assert "timelines" not in export.read_text()


@pytest.mark.parametrize(
    ("timelines", "reason"),
    [
        ('["a"]', "its timelines are no object"),
        ('{"a": "{}"}', "it must be the JSON text of one"),
        ('{"a": 1}', "it must be the JSON text of one"),
    ],
)
def test_an_export_with_something_else_for_timelines_is_refused(tmp_path: Path, timelines: str, reason: str) -> None:
    export = tmp_path / "profiles.json"
    content = (
        f'{{"format": "alpa_cfp profiles", "version": 1, "programs": {{}}, "profiles": [], "timelines": {timelines}}}'
    )
    export.write_text(content)
    with ProfileDatabase.in_memory() as database, pytest.raises(ExchangeFormatError, match=reason):
        database.import_json(export)


def test_a_timeline_goes_with_the_last_profile_of_its_key(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    with_timeline(path)
    with ProfileDatabase.open(path) as database:
        database.prune(jaxlib_version=key_of(0).jaxlib_version)
        assert database.timeline(key_of(0)) is None
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM timelines").fetchone() == (0,)


def test_a_timeline_that_was_changed_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    with_timeline(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE timelines SET digest = '0'")
    with ProfileDatabase.open(path) as database, pytest.raises(DatabaseDamagedError, match="the timeline 0"):
        database.timeline(key_of(0))
