"""Pipelines within this process that cannot be made, break in a step, or are left in the middle of one."""

import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import alpa
import jax
import numpy as np
import pytest

from alpa_cfp.spmd.distributed.host_client import HostExecutable
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.failures import waiting
from integration.pipelines import NUM_MICRO_BATCHES, pipeline
from integration.processes import wait_until
from integration.serial import assert_equal_up_to_rounding, expected_steps

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_pipelines")]


def test_a_script_that_ends_while_a_step_is_computed_ends_well() -> None:
    code = """
import alpa, jax.numpy as jnp

def step(weights, batch):
    def loss(weights):
        hidden = jnp.tanh(batch["x"] @ weights["first"])
        alpa.mark_pipeline_boundary()
        return jnp.mean((hidden @ weights["second"]) ** 2)
    return alpa.grad(loss)(weights)

weights = {"first": jnp.ones((8, 8)), "second": jnp.ones((8, 8))}
method = alpa.PipeshardParallel(num_micro_batches=2, layer_option=alpa.ManualLayerOption())
alpa.parallelize(step, method=method, donate_argnums=())(weights, {"x": jnp.ones((8, 8))})
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100)
    assert ended.returncode == 0, ended.stderr


def test_stages_that_are_to_be_chosen_by_their_times_need_a_cluster_of_ray() -> None:
    built = build("mlp")
    step = alpa.parallelize(train_step(built, alpa.value_and_grad), method=pipeline(2, stage_option="auto"))
    with pytest.raises(errors.StageOptionError, match="AutoStageOption times stages on meshes of a Ray cluster"):
        step(built.state, built.batch)


@pytest.mark.parametrize("stages", [1, 4])
def test_a_stage_of_each_layer_needs_as_many_layers_as_stages(stages: int) -> None:
    built = build("mlp")
    method = pipeline(2, stage_option=alpa.UniformStageOption(num_stages=stages))
    step = alpa.parallelize(train_step(built, alpa.value_and_grad), method=method)
    with pytest.raises(errors.StageOptionError, match=f"num_stages={stages}.* of each layer, of which there are 2"):
        step(built.state, built.batch)


def test_a_stage_that_fails_is_named_the_other_is_not_left_waiting_and_the_next_call_makes_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "_LOOK_EVERY_S", 0.5)
    config: Any = alpa.global_config
    monkeypatch.setattr(config, "host_limits", replace(config.host_limits, settle_s=1.0))
    built = build("mlp")
    step = alpa.parallelize(train_step(built, alpa.value_and_grad), method=pipeline(2))
    step(jax.tree.map(np.array, built.state), built.batch)
    run, failing = HostExecutable.run, "mesh_0"

    def fail_on_first(self: HostExecutable, arguments: Any) -> Any:
        if failing in self.module.name:
            raise ValueError("no more")
        return run(self, arguments)

    with monkeypatch.context() as patch:
        patch.setattr(HostExecutable, "run", fail_on_first)
        with pytest.raises(errors.MeshLostError, match=r"was lost \(host .*: the program \S+mesh_0\S+ .*: no more"):
            np.asarray(step(jax.tree.map(np.array, built.state), built.batch)[1]["loss"])
    wait_until(lambda: not any(thread.name.startswith("mesh ") for thread in threading.enumerate()))
    expected = expected_steps("mlp", NUM_MICRO_BATCHES, 1)[0]
    actual = step(jax.tree.map(np.array, built.state), built.batch)
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, actual), (expected.state, expected.metrics, expected.grads))
