"""A plan that was made before is used again as long as its profiles say the same."""

import dataclasses
from functools import cache
from pathlib import Path

import pytest

from alpa_cfp.apply.annotate import annotate
from alpa_cfp.database import Profile, ProfileDatabase, ProfileKey, utc_now
from alpa_cfp.plan import plan_cache as remembered
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_cache import PlanCache, PlannedModule
from alpa_cfp.search import MemoryUse
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding
from unit.alpa_cfp.training_steps import MESH, two_layer_blocks, two_layer_module

NOTHING = {f"{name}_bytes": 0 for name in ("argument", "output", "aliased", "temporary")}
PLAN = Plan(
    "ab" * 32,
    (8,),
    (BlockStrategy((0,), StateSharding.ZERO3),) * 2,
    0.1,
    MemoryUse(1, 2, 3),
    "measure",
    measured_s=0.2,
)
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


def memory(database: ProfileDatabase, request: str = "a step", module: HloModule | None = None) -> PlanCache:
    return PlanCache(database, two_layer_module() if module is None else module, request)


@cache
def made() -> PlannedModule:
    """A plan for the two-layer step, and the step with the plan in it."""
    module = dataclasses.replace(two_layer_module())
    annotate(module, two_layer_blocks(), MESH, PLAN.strategies)
    return PlannedModule(PLAN, module)


def test_nothing_is_remembered_at_first(database: ProfileDatabase) -> None:
    assert memory(database).get() is None


def test_a_plan_is_remembered_as_it_was(database: ProfileDatabase) -> None:
    memory(database).put(made(), KEYS)
    assert memory(database).get() == made()


def test_another_request_has_another_plan(database: ProfileDatabase) -> None:
    memory(database).put(made(), KEYS)
    assert memory(database, "another step").get() is None
    memory(database, "another step").put(PlannedModule(dataclasses.replace(PLAN, predicted_s=1.0), made().module), KEYS)
    assert memory(database).get() == made()


def test_another_module_has_another_plan(database: ProfileDatabase) -> None:
    memory(database).put(made(), KEYS)
    other = dataclasses.replace(two_layer_module(), donated=(False,) * 5)
    assert memory(database, module=other).get() is None


def test_another_version_of_the_planner_makes_its_own_plan(
    database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory(database).put(made(), KEYS)
    monkeypatch.setattr(remembered, "_code", lambda: "another")
    assert memory(database).get() is None


def test_a_plan_is_forgotten_when_one_of_its_profiles_has_more_samples(database: ProfileDatabase) -> None:
    memory(database).put(made(), KEYS)
    database.put(KEYS[1], profile(0.5))
    assert memory(database).get() is None


def test_a_plan_is_forgotten_when_one_of_its_profiles_is_gone(database: ProfileDatabase, tmp_path: Path) -> None:
    memory(database).put(made(), KEYS)
    with ProfileDatabase.open(tmp_path / "profiles.sqlite") as same:
        same.prune(device_kind="cpu")
    assert memory(database).get() is None


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"plan": {}, "profiles": [], "state": ""}', '{"profiles": [{}]}', "[" * 100_000],
    ids=range(6),
)
def test_a_file_that_cannot_be_read_is_as_good_as_none(database: ProfileDatabase, content: str) -> None:
    kept = memory(database)
    kept.put(made(), KEYS)
    assert database.path is not None
    (path,) = database.path.with_name(f"{database.path.name}.plans").iterdir()
    path.write_text(content)
    assert kept.get() is None
    kept.put(made(), KEYS)
    assert kept.get() == made()


def test_plans_are_not_kept_without_a_file() -> None:
    kept = memory(ProfileDatabase.in_memory())
    kept.put(made(), [])
    assert kept.get() is None


def test_a_directory_that_cannot_be_written_costs_only_a_warning(
    database: ProfileDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    assert database.path is not None
    database.path.with_name(f"{database.path.name}.plans").write_text("in the way")
    memory(database).put(made(), KEYS)
    assert "cannot be kept" in caplog.text
    assert memory(database).get() is None
