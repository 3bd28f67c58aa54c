"""`CFPShardParallel` stands where `alpa.ShardParallel` stands, and every plan of its equals the serial run."""

import dataclasses
import logging
import math
from pathlib import Path
from typing import Any

import alpa
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.util import count_communication_primitives
from jax.sharding import PartitionSpec

from alpa_cfp import CFPOption, CFPShardParallel
from alpa_cfp.alpa import devices
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.errors import OptionError, PlanError, ReplayError
from alpa_cfp.search import MemoryBudgetError
from alpa_cfp.spmd.compile.executable import MeshExecutable
from alpa_cfp.spmd.ir import mlir
from alpa_cfp_bench.workloads.meshes import logical_mesh
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import Size
from alpa_on_jax.errors import HybridShardingError
from integration.planned import ESTIMATE, planned

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("mesh", "num_micro_batches"), [("1x8", None), ("1x8", 2), ("2x2", 2), ("2x4", None)])
@pytest.mark.parametrize("model", ["mlp", "gpt", "bert", "moe", "conv"])
def test_a_plan_of_estimated_costs_equals_the_serial_run(model: str, mesh: str, num_micro_batches: int | None) -> None:
    planned(model, mesh, num_micro_batches, ESTIMATE)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> CFPOption:
    """Measures, and keeps what it has measured while the tests of this file run."""
    path = tmp_path_factory.mktemp("profiles") / "profiles.sqlite"
    return CFPOption(database=path, samples=3, refine=2, progress=False)


@pytest.mark.parametrize(("model", "mesh"), [("mlp", "2x2"), ("gpt", "1x8")])
def test_a_plan_of_measured_costs_equals_the_serial_run(measured: CFPOption, model: str, mesh: str) -> None:
    planned(model, mesh, None, measured)
    assert isinstance(measured.database, Path)
    with ProfileDatabase.open(measured.database, readonly=True) as database:
        profiles = [profile for _, profile in database.items()]
    assert profiles
    assert all(profile.status == "measured" and len(profile.samples_s) >= 3 for profile in profiles)


def test_what_was_measured_before_gives_the_same_plan_and_nothing_is_compiled_but_that(
    measured: CFPOption, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = planned("mlp", "2x2", None, measured).get_last_executable()
    plan = measured.plans[-1]
    compiled: list[str] = []
    original = MeshExecutable.__init__
    monkeypatch.setattr(
        MeshExecutable,
        "__init__",
        lambda self, client, module: (compiled.append(module.name), original(self, client, module))[1],
    )
    second = planned("mlp", "2x2", None, measured).get_last_executable()
    assert len(compiled) == 1
    assert measured.plans[-1].to_json() == plan.to_json()
    assert second.input_sharding_specs == first.input_sharding_specs
    assert _text(second) == _text(first)


def test_the_same_profiles_give_the_same_plan_byte_for_byte(measured: CFPOption) -> None:
    planned("mlp", "2x2", None, measured)
    plan = measured.plans[-1]
    assert isinstance(measured.database, Path)
    for kept in measured.database.with_name(f"{measured.database.name}.plans").iterdir():
        kept.unlink()
    planned("mlp", "2x2", None, measured)
    assert measured.plans[-1].to_json() == plan.to_json()


def test_profiles_are_replayed_without_the_devices_that_they_were_made_on(
    measured: CFPOption, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned("mlp", "2x2", None, measured)
    # Nothing that could run a program.
    monkeypatch.setattr(devices, "Client", None)
    replayed = dataclasses.replace(measured, costs="replay", plans=[])
    planned("mlp", "2x2", None, replayed)
    assert replayed.plans[-1].strategies == measured.plans[-1].strategies
    assert replayed.plans[-1].measured_s == measured.plans[-1].measured_s


def test_a_mesh_that_was_never_measured_cannot_be_replayed(measured: CFPOption) -> None:
    with pytest.raises(ReplayError, match="no profiles of a 2x4 mesh"):
        planned("mlp", "2x4", None, dataclasses.replace(measured, costs="replay"))


def test_a_budget_below_data_parallelism_gives_a_sharded_plan_whose_compiled_program_keeps_to_it(
    measured: CFPOption,
) -> None:
    def needed(option: CFPOption) -> int:
        return planned("mlp", "2x2", None, option).get_last_executable().get_total_allocation_size()

    built, method = build("mlp"), alpa.DataParallel(logical_mesh("2x2"))
    whole: Any = alpa.parallelize(train_step(built, alpa.value_and_grad), method=method)
    budget = whole.get_executable(built.state, built.batch).get_total_allocation_size() // 2
    limited = dataclasses.replace(measured, memory_budget_bytes=budget, plans=[])
    assert needed(limited) <= budget
    assert limited.plans[-1].needed_bytes is not None
    assert limited.plans[-1].needed_bytes <= budget


def test_a_measured_budget_that_nothing_fits_into_says_what_the_least_compiled_program_needs(
    measured: CFPOption,
) -> None:
    with pytest.raises(MemoryBudgetError) as caught:
        planned("mlp", "2x2", None, dataclasses.replace(measured, memory_budget_bytes=64))
    least = caught.value.least_bytes
    enough = dataclasses.replace(measured, memory_budget_bytes=least, plans=[])
    assert planned("mlp", "2x2", None, enough).get_last_executable().get_total_allocation_size() <= least


@pytest.mark.parametrize("num_micro_batches", [None, 2])
def test_a_plan_for_another_shape_of_the_mesh_equals_the_serial_run(num_micro_batches: int | None) -> None:
    # Two axes of two devices each, on a mesh of one axis of four.
    square = dataclasses.replace(ESTIMATE, plans=[])
    planned("mlp", "2x2", num_micro_batches, square)
    option = CFPOption(plan=square.plans[-1], logical_mesh_shapes="all")
    planned("mlp", "1x4", num_micro_batches, option)
    assert option.plans[-1].mesh_shape == (2, 2)


def test_of_all_shapes_of_the_mesh_the_one_with_the_fastest_plan_is_taken() -> None:
    plans = {}
    for mesh in ("1x4", "2x2"):
        option = dataclasses.replace(ESTIMATE, plans=[])
        planned("gpt", mesh, None, option)
        plans[mesh] = option.plans[-1].predicted_s
    option = dataclasses.replace(ESTIMATE, logical_mesh_shapes="all", plans=[])
    planned("gpt", "1x4", None, option)
    assert option.plans[-1].predicted_s == min(plans.values())


def test_a_plan_for_three_axes_is_right_through_alpa() -> None:
    option = dataclasses.replace(ESTIMATE, logical_mesh_shapes="three_axes", plans=[])
    planned("mlp", "2x4", None, option)
    assert option.plans[-1].mesh_shape == (2, 2, 2)


def _text(executable: Any) -> str:
    """One device's program, without the places in the source that its ops come from."""
    with mlir.context():
        return mlir.to_text(mlir.parse(executable.compiled.program.bytecode))


def test_a_plan_that_was_kept_is_used_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    option = dataclasses.replace(ESTIMATE, plans=[])
    planned("mlp", "1x8", None, option)
    option.plans[-1].save(tmp_path / "plan.json")
    with caplog.at_level(logging.INFO, logger="alpa_cfp"):
        again = CFPOption(plan=tmp_path / "plan.json")
        planned("mlp", "1x8", None, again)
    assert again.plans == option.plans
    assert not any("candidates" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(("model", "mesh", "what"), [("mlp", "2x4", "1x8 mesh"), ("gpt", "1x8", "another program")])
def test_a_plan_for_something_else_is_refused(model: str, mesh: str, what: str) -> None:
    option = dataclasses.replace(ESTIMATE, plans=[])
    planned("mlp", "1x8", None, option)
    with pytest.raises(PlanError, match=what):
        planned(model, mesh, None, CFPOption(plan=option.plans[-1]))


def test_the_predicted_seconds_are_alpas_objective() -> None:
    executable = planned("mlp", "1x8", None, ESTIMATE).get_last_executable()
    assert 0 < executable.auto_sharding_objective < 1


def test_a_large_batch_makes_the_estimated_plan_data_parallel() -> None:
    built = build("mlp", Size(batch=4096, hidden=64))
    method = CFPShardParallel(logical_mesh("1x8"), None, ESTIMATE)
    step: Any = alpa.parallelize(train_step(built, alpa.value_and_grad), method=method)
    executable = step.get_executable(built.state, built.batch)
    total, all_reduce, *_ = count_communication_primitives(executable.get_hlo_text())
    assert total == all_reduce == 1
    _, placements = executable.get_input_placement_specs()
    assert placements["x"].sharding_specs[0].sharding[0].chunks == (8,)


def test_a_memory_budget_that_data_parallelism_does_not_keep_to_gives_a_plan_that_splits_the_state() -> None:
    def state_bytes(option: CFPOption) -> int:
        executable = planned("mlp", "1x8", None, option).get_last_executable()
        shardings, donated = executable.compiled.program.input_shardings, executable.donated_invars
        return sum(
            math.prod(sharding.local_shape(aval.shape)) * aval.dtype.itemsize
            for sharding, aval, is_state in zip(shardings, executable.avals, donated, strict=True)
            if is_state
        )

    free = state_bytes(ESTIMATE)
    limited = state_bytes(dataclasses.replace(ESTIMATE, memory_budget_bytes=free // 2))
    assert limited <= free // 2


def test_a_budget_that_nothing_fits_into_says_the_least_that_would() -> None:
    with pytest.raises(MemoryBudgetError) as caught:
        planned("mlp", "1x8", None, dataclasses.replace(ESTIMATE, memory_budget_bytes=64))
    least = caught.value.least_bytes
    assert least > 64
    planned("mlp", "1x8", None, dataclasses.replace(ESTIMATE, memory_budget_bytes=least))


def test_manual_shardings_are_refused_as_beside_the_ilp() -> None:
    manual = alpa.ManualShardingOption(("data", "model"), in_axis_resources=(PartitionSpec(None, "model"), None))
    method = CFPShardParallel(logical_mesh("2x4"), None, ESTIMATE, manual)
    parallel: Any = alpa.parallelize(lambda weight, x: x @ weight, method=method, donate_argnums=())
    with pytest.raises(HybridShardingError):
        parallel(jnp.ones((16, 16)), jnp.ones((8, 16)))


def test_a_function_without_any_contraction_is_planned_too() -> None:
    parallel: Any = alpa.parallelize(
        lambda x: jnp.tanh(x) + 1, method=CFPShardParallel(logical_mesh("1x8"), None, ESTIMATE), donate_argnums=()
    )
    x = jnp.ones((8, 16))
    np.testing.assert_allclose(np.asarray(parallel(x)), np.asarray(jnp.tanh(x) + 1), rtol=1e-6)


def test_planning_says_what_it_did(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="alpa_cfp"):
        planned("mlp", "2x2", None, ESTIMATE)
    messages = [record.getMessage() for record in caplog.records]
    assert any("blocks of" in message and "candidates" in message for message in messages)


@pytest.mark.parametrize(
    ("field", "value"), [("costs", "guess"), ("samples", 0), ("refine", -1), ("memory_budget_bytes", 0)]
)
def test_an_option_that_cannot_be_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(OptionError, match=rf"CFPOption\({field}="):
        CFPOption(**{field: value})


def test_the_ilps_option_is_refused() -> None:
    with pytest.raises(OptionError, match="takes a CFPOption"):
        CFPShardParallel(auto_sharding_option=alpa.AutoShardingOption())  # pyright: ignore[reportArgumentType]
