"""Pipelines over two hosts: how their meshes communicate, what is measured for stages, what becomes of a lost host."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import alpa
import jax
import numpy as np
import pytest
import ray
from alpa import AutoLayerOption, AutoShardingOption, PipeshardParallel, UniformStageOption
from alpa.device_mesh import get_global_physical_mesh, get_global_virtual_physical_mesh
from alpa.global_env import global_config

from alpa_cfp import CFPOption
from alpa_cfp.alpa import devices as cfp_devices
from alpa_cfp.alpa.pipelines import ExtendedPipeshardParallel
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.errors import ProfilingError
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.processes import launching
from integration.processes import wait_until_ended
from integration.serial import StepValues, assert_equal_up_to_rounding, expected_steps


def pipelined(model: str, option: AutoShardingOption | None = None) -> Any:
    """The step of a model in two stages."""
    method = PipeshardParallel(
        num_micro_batches=2,
        layer_option=AutoLayerOption(layer_num=2),
        stage_option=UniformStageOption(num_stages=2),
        default_auto_sharding_option=option,
    )
    return alpa.parallelize(train_step(build(model), alpa.value_and_grad), method=method)


def state_of(model: str) -> Any:
    """Copies: a step gives up its state, and the model's is every test's."""
    return jax.tree.map(np.array, build(model).state)


def assert_is(values: Any, expected: StepValues) -> None:
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, values), (expected.state, expected.metrics, expected.grads))


@pytest.mark.parametrize(("schedule", "layers"), [("interleaved_1f1b", 4), ("zero_bubble", 2)])
def test_two_steps_over_hosts_with_more_schedules_equal_the_serial_steps(
    initialised: None, schedule: str, layers: int
) -> None:
    mesh = get_global_virtual_physical_mesh()
    assert mesh is not None
    shape: Any = (1, mesh.num_devices_per_host)
    method = ExtendedPipeshardParallel(
        num_micro_batches=4,
        layer_option=AutoLayerOption(layer_num=layers),
        stage_option=UniformStageOption(2, submesh_physical_shape=shape, submesh_logical_shape=shape),
        default_auto_sharding_option=CFPOption(costs="estimate", progress=False),
        pipeline_schedule=schedule,
    )
    step = alpa.parallelize(train_step(build("gpt"), alpa.value_and_grad), method=method)
    state = state_of("gpt")
    for expected in expected_steps("gpt", 4, 2):
        values = step(state, build("gpt").batch)
        assert_is(values, expected)
        state = values[0]
    assert step.get_last_executable().schedule.name == schedule


@pytest.mark.parametrize("resharding", ["send_recv", "broadcast"])
def test_two_steps_of_a_pipeline_over_hosts_equal_the_serial_steps(
    initialised: None, monkeypatch: pytest.MonkeyPatch, resharding: str
) -> None:
    monkeypatch.setattr(global_config, "resharding_mode", resharding)
    step, state = pipelined("gpt"), state_of("gpt")
    for expected in expected_steps("gpt", 2, 2):
        values = step(state, build("gpt").batch)
        assert_is(values, expected)
        state = values[0]
    meshes = step.get_last_executable().mesh_group.meshes
    assert [mesh.shape for mesh in meshes] == [(1, 4), (1, 4)]
    assert len({mesh.node_ips[0] for mesh in meshes}) == 2
    # Another function on the same meshes.
    assert_is(pipelined("mlp")(state_of("mlp"), build("mlp").batch), expected_steps("mlp", 2, 1)[0])


def test_cfp_measures_for_stages_on_hosts_before_they_have_processes(initialised: None, tmp_path: Path) -> None:
    database = tmp_path / "profiles.sqlite"
    option = CFPOption(database=database, samples=2, refine=0, progress=False)
    assert_is(pipelined("mlp", option)(state_of("mlp"), build("mlp").batch), expected_steps("mlp", 2, 1)[0])
    with ProfileDatabase.open(database, readonly=True) as profiles:
        assert {key.hosts for key, profile in profiles.items() if profile.status == "measured"} == {"4"}


def test_stages_are_not_waited_for_for_ever_where_another_mesh_holds_the_devices(
    initialised: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_global_physical_mesh(create_if_not_exist=True)
    monkeypatch.setattr(cfp_devices, "_FREE_S", 1.0)
    option = CFPOption(database=tmp_path / "profiles.sqlite", samples=2, refine=0, progress=False)
    with pytest.raises(ProfilingError, match=r"a stage is planned for 1 hosts x 4 devices, and for 1 s no host"):
        pipelined("mlp", option)(state_of("mlp"), build("mlp").batch)


def test_a_host_killed_in_a_step_ends_all_meshes_and_training_goes_on_from_a_checkpoint(
    initialised: None, tmp_path: Path
) -> None:
    step = pipelined("mlp")
    first, second = expected_steps("mlp", 2, 2)
    values = step(state_of("mlp"), build("mlp").batch)
    assert_is(values, first)
    alpa.save_checkpoint(str(tmp_path), values[0], 1)
    group = step.get_last_executable().mesh_group
    group.sync_move_workers()
    group.sync_workers()
    pids = ray.get([worker.check_alive.remote() for mesh in group.meshes for worker in mesh.workers])

    os.kill(pids[0], signal.SIGSTOP)
    # The pipeline is asked for a step, in which the other stage waits for this one.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(global_config, "pipeline_check_alive", False)
        _, metrics, _ = step(values[0], build("mlp").batch)
    time.sleep(0.5)
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(errors.MeshLostError, match=rf"host {group.meshes[0].node_ips[0]}: its process has ended"):
        np.asarray(metrics["loss"])
    wait_until_ended(pids)
    assert get_global_virtual_physical_mesh().launched_physical_mesh_group is None

    executable = step.get_executable(jax.eval_shape(lambda: build("mlp").state), build("mlp").batch)
    restored = alpa.restore_checkpoint(str(tmp_path), 1, executable.get_input_placement_specs()[0])
    assert_is(step(restored, build("mlp").batch), second)


def test_a_mesh_that_cannot_be_made_leaves_none_of_the_pipeline_and_the_next_call_makes_them(
    initialised: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = pipelined("mlp")
    start = launching._start

    def fail_on_second(mesh: Any, *rest: Any) -> Any:
        if mesh.mesh_id == 1:
            raise errors.HostError.late("10.0.0.2-aa", 90)
        return start(mesh, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(launching, "_start", fail_on_second)
        with pytest.raises(errors.HostError, match=r"10\.0\.0\.2-aa did not answer"):
            step(state_of("mlp"), build("mlp").batch)
    assert_is(step(state_of("mlp"), build("mlp").batch), expected_steps("mlp", 2, 1)[0])
