"""Plans for devices that are not here are made of programs that their compilers compile."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from alpa_cfp import Plan, PlanOptions, autoshard, target
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.errors import PlanError
from alpa_cfp.profiling import MeasureOptions, Profiler
from alpa_cfp.profiling.targets.runner import TargetRunner, description_of
from alpa_cfp.search import MemoryBudgetError
from alpa_cfp.select.communication import communication_programs
from alpa_cfp.spmd.shardings.sharding import LogicalMesh

SHAPE = jax.ShapeDtypeStruct
WEIGHTS = {"up": SHAPE((2, 512, 2048), jnp.float32), "down": SHAPE((2, 2048, 512), jnp.float32)}
INPUTS = SHAPE((4096, 512), jnp.float32)


def step(weights: dict[str, jax.Array], x: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    """A training step of two MLPs."""

    def loss(weights: dict[str, jax.Array]) -> jax.Array:
        h = x
        for up, down in zip(weights["up"], weights["down"], strict=True):
            h = h + jax.nn.gelu(h @ up) @ down
        return jnp.mean(h**2)

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), value


def planned(name: str, options: PlanOptions) -> Plan:
    return autoshard(step, target(name).mesh((2, 4)), WEIGHTS, INPUTS, donate_argnums=0, option=options)


@pytest.fixture
def options(tmp_path: Path) -> PlanOptions:
    return PlanOptions(
        costs="compile", database=tmp_path / "profiles.sqlite", refine=1, baselines=False, progress=False
    )


def test_a_plan_has_the_modelled_step_and_the_compilers_memory_and_says_that_nothing_ran(
    name: str, options: PlanOptions
) -> None:
    plan = planned(name, options)
    assert plan.costs == "compile"
    assert plan.measured_s is not None
    assert 1e-5 < plan.measured_s < 1e-2
    assert plan.needed_bytes is not None
    assert plan.account is not None
    assert any(f"compiled for {name}" in each.text for each in plan.account.caveats)
    assert "modelled" in plan.explain()
    assert "measured" not in plan.explain().partition("What the planner")[0].replace("nothing was measured", "")
    with pytest.raises(PlanError, match="without devices"):
        plan.jit(step)


def test_a_plan_has_the_timeline_of_its_whole_program_and_its_report_draws_it(name: str, options: PlanOptions) -> None:
    plan = planned(name, options)
    assert plan.account is not None
    timeline = plan.account.timeline
    assert timeline is not None
    assert timeline.step_s == plan.measured_s
    assert timeline.computing_s + timeline.exposed_s + timeline.copies_s == pytest.approx(timeline.step_s)
    assert timeline.of_queue("communicating")
    exposed_ns = sum(each.exposed_ns for each in timeline.entries)
    assert exposed_ns == pytest.approx(1e9 * timeline.exposed_s, abs=len(timeline.entries))
    assert Plan.from_json(plan.to_json()) == plan
    assert "runs beside computation" in plan.explain()
    assert "Communication, modelled" in plan.report()


def test_a_replay_of_what_was_recorded_without_timelines_gives_the_plan_without_one(
    name: str, options: PlanOptions
) -> None:
    plan = planned(name, options)
    assert plan.account is not None
    with closing(sqlite3.connect(str(options.database))) as connection, connection:
        connection.execute("DROP TABLE timelines")
        connection.execute("PRAGMA user_version = 1")
    again = planned(name, replace(options, costs="replay"))
    assert again == replace(plan, account=replace(plan.account, timeline=None))
    assert "queues" not in again.explain()


def test_a_plan_is_made_again_of_what_was_compiled_byte_for_byte(name: str, options: PlanOptions) -> None:
    plan = planned(name, options)
    with ProfileDatabase.open(options.database, readonly=True) as database:
        before = list(database.items())
    again = planned(name, replace(options, costs="replay"))
    assert again.to_json() == plan.to_json()
    with ProfileDatabase.open(options.database, readonly=True) as database:
        assert list(database.items()) == before


def test_a_budget_is_kept_by_the_compilers_own_figure_or_the_error_says_what_the_least_would_take(
    name: str, options: PlanOptions
) -> None:
    with pytest.raises(MemoryBudgetError, match="the one that needs least memory takes") as error:
        planned(name, replace(options, memory_budget_bytes=1 << 20))
    budget = round(1.2 * error.value.least_bytes)
    plan = planned(name, replace(options, memory_budget_bytes=budget))
    assert plan.needed_bytes is not None
    assert plan.needed_bytes <= budget


def test_a_program_at_which_the_compiler_hangs_costs_that_program(name: str, tmp_path: Path) -> None:
    """Nothing is compiled in a tenth of a millisecond."""
    on, modules = target(name), communication_programs(LogicalMesh((8,)))[:2]
    measure = MeasureOptions(1, progress=False, compile_limit_s=1e-4)
    with (
        ProfileDatabase.open(tmp_path / "profiles.sqlite") as database,
        Profiler((TargetRunner(on, measure), description_of(on)), database, measure) as profiler,
    ):
        assert [each.failure for each in profiler.measure(modules)] == ["timed_out", "timed_out"]
