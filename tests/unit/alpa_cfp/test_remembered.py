"""A plan that was made before is used again as long as its profiles say the same."""

import dataclasses
from pathlib import Path

import pytest

from alpa_cfp.database import Profile, ProfileDatabase, ProfileKey, utc_now
from alpa_cfp.plan import Plan
from alpa_cfp.remembered import Memory
from alpa_cfp.search import MemoryUse
from alpa_cfp.strategies import BlockStrategy, Kept

NOTHING = {f"{name}_bytes": 0 for name in ("argument", "output", "aliased", "temporary")}
PLAN = Plan("ab" * 32, (8,), (BlockStrategy((0,), Kept.ALL_SPLIT),), 0.1, MemoryUse(1, 2, 3), "measure", measured_s=0.2)
KEYS = [
    ProfileKey.of(text, mesh_shape=(8,), hosts="8", device_kind="cpu", jaxlib_version="1") for text in ("one", "two")
]


def profile(*samples_s: float) -> Profile:
    return Profile(status="measured", created_at=utc_now(), samples_s=samples_s, compile_s=0.1, **NOTHING)


@pytest.fixture
def database(tmp_path: Path) -> ProfileDatabase:
    """One with a profile for each of KEYS."""
    database = ProfileDatabase.open(tmp_path / "profiles.sqlite")
    for key in KEYS:
        database.put(key, profile(1.0, 2.0))
    return database


def test_nothing_is_remembered_at_first(database: ProfileDatabase) -> None:
    assert Memory(database, "a step").recall() is None


def test_a_plan_is_remembered_as_it_was(database: ProfileDatabase) -> None:
    Memory(database, "a step").keep(PLAN, KEYS)
    assert Memory(database, "a step").recall() == PLAN


def test_another_request_has_another_plan(database: ProfileDatabase) -> None:
    Memory(database, "a step").keep(PLAN, KEYS)
    assert Memory(database, "another step").recall() is None
    Memory(database, "another step").keep(dataclasses.replace(PLAN, predicted_s=1.0), KEYS)
    assert Memory(database, "a step").recall() == PLAN


def test_a_plan_is_forgotten_when_one_of_its_profiles_has_more_samples(database: ProfileDatabase) -> None:
    Memory(database, "a step").keep(PLAN, KEYS)
    database.put(KEYS[1], profile(0.5))
    assert Memory(database, "a step").recall() is None


def test_a_plan_is_forgotten_when_one_of_its_profiles_is_gone(database: ProfileDatabase, tmp_path: Path) -> None:
    Memory(database, "a step").keep(PLAN, KEYS)
    with ProfileDatabase.open(tmp_path / "profiles.sqlite") as same:
        same.prune(device_kind="cpu")
    assert Memory(database, "a step").recall() is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"plan": {}, "profiles": [], "state": ""}', '{"profiles": [{}]}'])
def test_a_file_that_cannot_be_read_is_as_good_as_none(database: ProfileDatabase, content: str) -> None:
    memory = Memory(database, "a step")
    memory.keep(PLAN, KEYS)
    assert database.path is not None
    (path,) = database.path.with_name(f"{database.path.name}.plans").iterdir()
    path.write_text(content)
    assert memory.recall() is None
    memory.keep(PLAN, KEYS)
    assert memory.recall() == PLAN


def test_plans_are_not_kept_without_a_file() -> None:
    memory = Memory(ProfileDatabase.in_memory(), "a step")
    memory.keep(PLAN, [])
    assert memory.recall() is None


def test_a_directory_that_cannot_be_written_costs_only_a_warning(
    database: ProfileDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    assert database.path is not None
    database.path.with_name(f"{database.path.name}.plans").write_text("in the way")
    Memory(database, "a step").keep(PLAN, KEYS)
    assert "cannot be kept" in caplog.text
    assert Memory(database, "a step").recall() is None
