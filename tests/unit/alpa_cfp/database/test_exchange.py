"""Export, import and merge: a union that loses nothing, adds nothing and does not depend on the order."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from alpa_cfp.database import (
    DatabaseDamagedError,
    DatabaseMissingError,
    ExchangeFormatError,
    Profile,
    ProfileDatabase,
    ProfileKey,
)
from alpa_cfp.database.exchange import export_text
from unit.alpa_cfp.database import profiles as some
from unit.alpa_cfp.database.profiles import filled, key_of, make_database, measured, number_of_sessions, program_of

pytestmark = pytest.mark.slow

Content = list[tuple[ProfileKey, Profile]]


def exported(database: ProfileDatabase) -> bytes:
    """The bytes of a database's export."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "profiles.json"
        database.export_json(path)
        return path.read_bytes()


def union(*contents: bytes) -> ProfileDatabase:
    """A database into which these exports were imported one after the other."""
    database = ProfileDatabase.in_memory()
    with tempfile.TemporaryDirectory() as directory:
        for content in contents:
            path = Path(directory) / "profiles.json"
            path.write_bytes(content)
            database.import_json(path)
    return database


@given(some.contents)
def test_an_import_gives_what_was_exported(content: Content) -> None:
    with filled(content) as source, union(exported(source)) as copy:
        assert exported(copy) == exported(source)
        assert list(copy.items()) == list(source.items())


@given(some.contents)
def test_equal_content_is_exported_to_equal_bytes(content: Content) -> None:
    with filled(content) as one, filled([*reversed(content), *content]) as other:
        assert exported(one) == exported(other)


def test_an_export_sorts_what_it_is_given() -> None:
    early, late = measured(), measured(created_at="2026-03-02T12:00:00Z")
    one = export_text({key_of(1): [early, late], key_of(2): [late]}, {"b": "2", "a": "1"})
    assert export_text({key_of(2): [late], key_of(1): [late, early]}, {"a": "1", "b": "2"}) == one


@given(some.contents, some.contents)
def test_the_union_does_not_depend_on_the_order(one: Content, other: Content) -> None:
    with filled(one) as first, filled(other) as second, filled(one + other) as both:
        a, b = exported(first), exported(second)
        with union(a, b) as ab, union(b, a) as ba:
            assert exported(ab) == exported(ba) == exported(both)


@given(some.contents)
def test_importing_twice_changes_nothing(content: Content) -> None:
    with filled(content) as source:
        export = exported(source)
        with union(export, export) as twice:
            assert exported(twice) == export


@settings(max_examples=8)
@given(some.contents, some.contents)
def test_merging_files_is_the_same_union(one: Content, other: Content) -> None:
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory) / "one.sqlite", Path(directory) / "other.sqlite"]
        for path, content in zip(paths, (one, other), strict=True):
            with ProfileDatabase.open(path) as database:
                for key, profile in content:
                    database.put(key, profile)
        with ProfileDatabase.open(paths[0]) as target, filled(one + other) as both:
            added = target.merge(paths[1])
            assert added == number_of_sessions(target) - len(set(one))
            assert target.merge(paths[1]) == 0
            assert exported(target) == exported(both)


def test_a_merge_leaves_the_other_file_as_it_is(tmp_path: Path) -> None:
    make_database(tmp_path / "other.sqlite", 3)
    before = (tmp_path / "other.sqlite").read_bytes()
    with ProfileDatabase.in_memory() as database:
        assert database.merge(tmp_path / "other.sqlite") == 3
    assert (tmp_path / "other.sqlite").read_bytes() == before


def test_a_database_can_be_merged_with_itself(tmp_path: Path) -> None:
    make_database(tmp_path / "profiles.sqlite", 3)
    with ProfileDatabase.open(tmp_path / "profiles.sqlite") as database:
        assert database.merge(tmp_path / "profiles.sqlite") == 0


def test_texts_of_programs_go_along(tmp_path: Path) -> None:
    content = make_database(tmp_path / "profiles.sqlite", 2)
    with ProfileDatabase.open(tmp_path / "profiles.sqlite") as source, union(exported(source)) as copy:
        merged = ProfileDatabase.in_memory()
        merged.merge(tmp_path / "profiles.sqlite")
        for number, key in enumerate(content):
            assert copy.program_text(key) == merged.program_text(key) == program_of(number)


def test_an_import_adds_a_text_to_profiles_that_lacked_it(tmp_path: Path) -> None:
    with ProfileDatabase.in_memory() as source, filled([(key_of(), measured())]) as target:
        source.put(key_of(), measured(), program_text=program_of())
        source.export_json(tmp_path / "profiles.json")
        assert target.import_json(tmp_path / "profiles.json") == 0
        assert target.program_text(key_of()) == program_of()


def test_an_export_can_be_of_one_device_kind(tmp_path: Path) -> None:
    with filled([(key_of(), measured()), (key_of(device_kind="H100"), measured())]) as database:
        assert database.export_json(tmp_path / "profiles.json", device_kind="H100") == 1
    with ProfileDatabase.in_memory() as copy:
        copy.import_json(tmp_path / "profiles.json")
        assert copy.keys() == [key_of(device_kind="H100")]


def test_an_export_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "profiles.json").mkdir()
    with filled([(key_of(), measured())]) as database, pytest.raises(OSError, match=r"profiles\.json"):
        database.export_json(tmp_path / "profiles.json")
    assert [path.name for path in tmp_path.iterdir()] == ["profiles.json"]


def _set(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for name in path[:-1]:
            content = content[name]
        content[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_set("format", to="notes"), "does not say 'alpa_cfp profiles'"),
        (_set("version", to=2), "its version is 2, not 1"),
        (_set("profiles", to={}), "lacks the object of programs or the list"),
        (_set("profiles", 0, to=[]), "must have a key and a list of sessions"),
        (_set("profiles", 0, "key", to={}), "exactly the fields device_kind"),
        (_set("profiles", 0, "key", "mesh_shape", to=[0]), "mesh_shape is 0"),
        (_set("profiles", 0, "sessions", 0, "samples_s", to=[-1]), "samples_s is -1"),
        (_set("profiles", 0, "sessions", 0, "samples_s", to=7), "samples_s is 7"),
        (_set("profiles", 0, "sessions", 0, "collectives", to=["all-reduce"]), "list of kind, size_bytes"),
        (_set("profiles", 0, "sessions", 0, "hostname", to="x"), "exactly the fields aliased_bytes"),
        (_set("programs", "0" * 64, to="module {}"), "it must have that digest"),
    ],
)
def test_an_export_with_something_wrong_says_what_and_adds_nothing(
    tmp_path: Path, change: Callable[[Any], None], reason: str
) -> None:
    with filled([(key_of(0), measured()), (key_of(1), measured())]) as source:
        content = json.loads(exported(source))
    change(content)
    (tmp_path / "profiles.json").write_text(json.dumps(content))
    with ProfileDatabase.in_memory() as database:
        with pytest.raises(ExchangeFormatError, match=f"profiles.json is not an export.*{reason}"):
            database.import_json(tmp_path / "profiles.json")
        assert database.keys() == []


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"NaN"])
def test_what_is_no_export_at_all_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "profiles.json").write_bytes(content)
    with ProfileDatabase.in_memory() as database, pytest.raises(ExchangeFormatError, match="is not an export"):
        database.import_json(tmp_path / "profiles.json")


def test_a_merge_with_a_missing_or_damaged_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "damaged.sqlite").write_bytes(b"garbage" * 1000)
    with ProfileDatabase.in_memory() as database:
        with pytest.raises(DatabaseMissingError):
            database.merge(tmp_path / "none.sqlite")
        with pytest.raises(DatabaseDamagedError, match=r"damaged\.sqlite cannot be read"):
            database.merge(tmp_path / "damaged.sqlite")
    assert (tmp_path / "damaged.sqlite").read_bytes() == b"garbage" * 1000
