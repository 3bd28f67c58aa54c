"""Pipelines within this process against the serial run: models, schedules, numbers of stages, who shards a stage."""

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from alpa import (
    AutoLayerOption,
    AutoShardingOption,
    CreateStateParallel,
    ManualLayerOption,
    PipeshardParallel,
    UniformStageOption,
)

from alpa_cfp import CFPOption, CFPPipeshardParallel
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.workloads.model import micro_batched_step, train_step
from alpa_cfp.workloads.models import build
from alpa_on_jax import errors
from alpa_on_jax.ray_mesh import waiting
from alpa_on_jax.ray_mesh.host_client import HostExecutable
from integration.processes import wait_until
from integration.serial import assert_equal_up_to_rounding, expected_steps

BY = {"ilp": AutoShardingOption(), "cfp": CFPOption(costs="estimate", progress=False)}
CASES = [
    # model, schedule, stages, micro-batches, who shards
    ("mlp", "1f1b", 2, 2, "ilp"),
    ("mlp", "gpipe", 4, 4, "cfp"),
    ("mlp", "1f1b_overlap_friendly", 4, 4, "ilp"),
    ("gpt", "1f1b", 2, 2, "ilp"),
    ("gpt", "1f1b", 2, 2, "cfp"),
    ("gpt", "1f1b", 4, 4, "ilp"),
    ("gpt", "1f1b_overlap_friendly", 2, 4, "ilp"),
    ("moe", "gpipe", 2, 2, "ilp"),
    ("moe", "1f1b", 2, 2, "cfp"),
    ("conv", "1f1b", 2, 2, "ilp"),
]


@pytest.fixture(autouse=True)
def local() -> Iterator[None]:
    """Alpa in this process alone; the meshes of a test end with it."""
    alpa.init(cluster="local")
    yield
    alpa.shutdown()
    gc.collect()


def pipeline(stages: int, **options: Any) -> PipeshardParallel:
    method = {
        "num_micro_batches": 2,
        "layer_option": AutoLayerOption(layer_num=stages),
        "stage_option": UniformStageOption(num_stages=stages),
        "pipeline_schedule": "1f1b",
    }
    return PipeshardParallel(**{**method, **options})


def assert_equals_serial_steps(model: str, micro_batches: int, method: PipeshardParallel) -> Any:
    """Hold two steps against the serial ones; gives the function."""
    built = build(model)
    step = alpa.parallelize(train_step(built, alpa.value_and_grad), method=method)
    state = jax.tree.map(np.array, built.state)
    for expected in expected_steps(model, micro_batches, 2):
        state, metrics, grads = step(state, built.batch)
        actual = jax.tree.map(np.asarray, (state, metrics, grads))
        assert_equal_up_to_rounding(actual, (expected.state, expected.metrics, expected.grads))
    return step


@pytest.mark.parametrize(("model", "schedule", "stages", "micro_batches", "by"), CASES)
def test_two_steps_of_a_pipeline_equal_the_serial_steps(
    model: str, schedule: str, stages: int, micro_batches: int, by: str
) -> None:
    method = pipeline(
        stages, num_micro_batches=micro_batches, pipeline_schedule=schedule, default_auto_sharding_option=BY[by]
    )
    step = assert_equals_serial_steps(model, micro_batches, method)
    assert len(step.get_last_executable().mesh_group) == stages


def test_cfp_measures_the_parts_of_each_stage_on_devices_like_the_stages(tmp_path: Path) -> None:
    database = tmp_path / "profiles.sqlite"
    option = CFPOption(database=database, samples=2, refine=0, progress=False)
    method = CFPPipeshardParallel(
        num_micro_batches=2,
        default_auto_sharding_option=option,
        layer_option=AutoLayerOption(layer_num=2),
        stage_option=UniformStageOption(num_stages=2),
    )
    assert_equals_serial_steps("mlp", 2, method)
    with ProfileDatabase.open(database, readonly=True) as profiles:
        measured = [(key, profile) for key, profile in profiles.items() if profile.status == "measured"]
    assert measured
    assert {np.prod(key.mesh_shape) for key, _ in measured} == {4}


def clipped_step(norm: float) -> tuple[Any, Any, Any]:
    """A step of two layers with one weight in both, whose gradients are clipped by their norm over all stages."""
    rng = np.random.default_rng(0)
    state = {"tied": rng.normal(size=(16, 16)), "first": rng.normal(size=(16, 16)), "second": rng.normal(size=(16, 16))}
    state = {name: value.astype(np.float32) / 4 for name, value in state.items()}
    batch = {"x": rng.normal(size=(16, 16)).astype(np.float32)}
    clip = optax.clip_by_global_norm(norm)

    def step_with(value_and_grad: Any) -> Any:
        def step(state: Any, batch: Any) -> Any:
            def loss(params: Any) -> jax.Array:
                hidden = jnp.tanh(batch["x"] @ params["tied"] @ params["first"])
                alpa.mark_pipeline_boundary()
                return jnp.mean((hidden @ params["second"] @ params["tied"].T) ** 2)

            value, grads = value_and_grad(loss)(state)
            grads, _ = clip.update(grads, clip.init(state))
            return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, state, grads), value

        return step

    return state, batch, step_with


def test_a_norm_over_all_stages_and_a_weight_in_two_of_them_are_as_in_the_serial_step() -> None:
    state, batch, step_with = clipped_step(0.1)
    method = pipeline(2, layer_option=ManualLayerOption())
    step = alpa.parallelize(step_with(alpa.value_and_grad), method=method)
    serial = jax.jit(step_with(jax.value_and_grad))
    for _ in range(3):
        expected = jax.tree.map(np.asarray, serial(state, batch))
        actual = jax.tree.map(np.asarray, step(jax.tree.map(jnp.array, state), batch))
        assert_equal_up_to_rounding(actual, expected)
        state = expected[0]
    unclipped = jax.jit(clipped_step(1e9)[2](jax.value_and_grad))(state, batch)
    assert not np.allclose(unclipped[0]["tied"], serial(state, batch)[0]["tied"], rtol=1e-3), "nothing is clipped"


def test_a_function_of_the_model_alone_runs_forward_through_the_stages() -> None:
    state, batch, _ = clipped_step(1.0)

    def predict(params: Any, batch: Any) -> jax.Array:
        hidden = jnp.tanh(batch["x"] @ params["tied"] @ params["first"])
        alpa.mark_pipeline_boundary()
        return hidden @ params["second"]

    method = pipeline(2, layer_option=ManualLayerOption(), pipeline_schedule="inference")
    actual = np.asarray(alpa.parallelize(predict, method=method)(state, batch))
    assert_equal_up_to_rounding(actual, np.asarray(jax.jit(predict)(state, batch)))


def test_a_state_that_is_created_for_a_pipeline_lies_where_its_stages_want_it() -> None:
    built = build("mlp")
    step = alpa.parallelize(train_step(built, alpa.value_and_grad), method=pipeline(2))

    def make() -> Any:
        def values(leaf: Any) -> jax.Array:
            return (jnp.arange(leaf.size).reshape(leaf.shape) / max(leaf.size, 1)).astype(leaf.dtype)

        return jax.tree.map(values, built.state)

    create = alpa.parallelize(make, method=CreateStateParallel(step, built.batch), batch_argnums=())
    expected = jax.jit(micro_batched_step(built, 2))(jax.jit(make)(), built.batch)
    actual = step(create(), built.batch)
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, actual), jax.tree.map(np.asarray, expected))


def test_stages_take_their_inputs_as_those_of_another_program_do() -> None:
    state, _, _ = clipped_step(1.0)

    def predict(params: Any, batch: Any) -> jax.Array:
        hidden = jnp.tanh(batch["x"] @ params["first"])
        alpa.mark_pipeline_boundary()
        return hidden @ params["second"]

    def compiled(rows: int, **options: Any) -> Any:
        method = pipeline(
            2,
            num_micro_batches=1,
            layer_option=ManualLayerOption(),
            pipeline_schedule="inference",
            default_auto_sharding_option=AutoShardingOption(allow_all_to_all=False, allow_all_gather=False),
            **options,
        )
        step = alpa.parallelize(predict, method=method, donate_argnums=())
        batch = {"x": np.random.default_rng(0).normal(size=(rows, 16)).astype(np.float32)}
        assert_equal_up_to_rounding(np.asarray(step(state, batch)), np.asarray(jax.jit(predict)(state, batch)))
        return step.get_last_executable().stage_input_shard_specs

    of_one, of_many = compiled(1), compiled(64)
    assert of_one != of_many
    assert compiled(64, stage_input_shardings=of_one) == of_one


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
    expected = expected_steps("mlp", 2, 1)[0]
    actual = step(jax.tree.map(np.array, built.state), built.batch)
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, actual), (expected.state, expected.metrics, expected.grads))
