"""Pipelines with schedules that alpa does not have give what the serial run gives, with CFP and Alpa's ILP inside."""

from collections.abc import Sequence
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.pipeline_parallel import compile_executable

from alpa_cfp import CFPOption
from alpa_cfp.alpa.pipelines import ExtendedPipeshardParallel
from alpa_cfp.errors import OptionError
from alpa_cfp.stages.schedule_choice import LayerCosts, Run
from integration.pipelines import BY, NUM_MICRO_BATCHES, hold_steps
from integration.serial import assert_equal_up_to_rounding, run_serially

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_pipelines")]
REPLACED = ("cluster_layers_and_slice_mesh", "PipeDreamFlush")


def method(schedule: str, by: str, layers: int, stages: int, **others: Any) -> ExtendedPipeshardParallel:
    """A pipeline on all devices: so many layers on so many meshes."""
    shape: Any = (1, 8 // stages)
    fields = {
        "num_micro_batches": NUM_MICRO_BATCHES,
        "layer_option": alpa.AutoLayerOption(layer_num=layers),
        "stage_option": alpa.UniformStageOption(stages, submesh_physical_shape=shape, submesh_logical_shape=shape),
        "default_auto_sharding_option": BY[by],
    }
    return ExtendedPipeshardParallel(pipeline_schedule=schedule, **{**fields, **others})


@pytest.mark.parametrize(
    ("model", "by", "stages", "chunks"), [("mlp", "cfp", 2, 2), ("gpt", "ilp", 2, 3), ("moe", "cfp", 4, 2)]
)
def test_an_interleaved_pipeline_equals_the_serial_run(model: str, by: str, stages: int, chunks: int) -> None:
    parallel = hold_steps(model, method("interleaved_1f1b", by, stages * chunks, stages, virtual_stages=chunks))
    executable = parallel.get_last_executable()
    assert executable.schedule.name == "interleaved_1f1b"
    places = [next(iter(executable.schedule.stage_placement(stage))) for stage in range(2 * stages * chunks)]
    forward = [*range(stages)] * chunks
    assert places == [*forward, *reversed(forward)]


@pytest.mark.parametrize(("model", "by", "stages"), [("gpt", "cfp", 2), ("mlp", "ilp", 4), ("conv", "cfp", 4)])
def test_a_pipeline_with_gradients_apart_equals_the_serial_run(model: str, by: str, stages: int) -> None:
    parallel = hold_steps(model, method("zero_bubble", by, stages, stages))
    executable = parallel.get_last_executable()
    assert executable.schedule.name == "zero_bubble"
    assert executable.schedule.num_stage == 4 * stages  # forward, backward, gradients and update


def chain(weights: Any, batch: Any, gradients: Any, cut: Any) -> Any:
    """A step of four layers, of which the first and the third one have the same weights."""

    def loss(weights: Any) -> jax.Array:
        x = batch["x"]
        for number in (0, 1, 0, 2):
            x = jnp.tanh(x @ weights[number])
            cut()
        return jnp.mean((x @ weights[3] - batch["y"]) ** 2)

    value, found = gradients(loss)(weights)
    return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, found), value


@pytest.mark.parametrize("schedule", ["interleaved_1f1b", "zero_bubble"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (2, 1), (1, 2)])
def test_shared_weights_one_micro_batch_and_one_mesh_are_no_exceptions(
    schedule: str, stages: int, micro_batches: int
) -> None:
    drawn = np.random.default_rng(0)
    weights = [drawn.normal(size=(16, 16)).astype(np.float32) / 4 for _ in range(4)]
    batch = {key: drawn.normal(size=(16, 16)).astype(np.float32) for key in "xy"}
    expected = run_serially(lambda *args: chain(*args, jax.value_and_grad, lambda: None), weights, batch)
    manual = alpa.ManualLayerOption()
    asked = method(schedule, "cfp", 5, stages, num_micro_batches=micro_batches, layer_option=manual)
    step = alpa.parallelize(lambda *args: chain(*args, alpa.value_and_grad, alpa.mark_pipeline_boundary), method=asked)
    actual = step(jax.tree.map(np.array, weights), batch)
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, actual), expected)


def test_a_function_that_follows_an_interleaved_step_equals_the_serial_one() -> None:
    drawn = np.random.default_rng(0)
    weights = [drawn.normal(size=(16, 16)).astype(np.float32) / 4 for _ in range(4)]
    batch = {key: drawn.normal(size=(16, 16)).astype(np.float32) for key in "xy"}
    asked = method("interleaved_1f1b", "cfp", 5, 2, layer_option=alpa.ManualLayerOption())
    step = alpa.parallelize(lambda *args: chain(*args, alpa.value_and_grad, alpa.mark_pipeline_boundary), method=asked)
    state, _ = step(jax.tree.map(np.array, weights), batch)

    def evaluate(weights: Any, batch: Any) -> jax.Array:
        x = batch["x"]
        for number in (0, 1, 0, 2):
            x = jnp.tanh(x @ weights[number])
        return x @ weights[3]

    def placed() -> Any:
        return step.get_last_executable().get_input_placement_specs()

    follow = alpa.FollowParallel(step, num_micro_batches=2, get_input_placement_specs=placed)
    actual = alpa.parallelize(evaluate, donate_argnums=(), method=follow)(state, batch)
    expected = run_serially(evaluate, jax.tree.map(np.asarray, state), batch)
    assert_equal_up_to_rounding(np.asarray(actual), expected)


def test_checkpointed_layers_with_gradients_apart_equal_the_serial_run() -> None:
    layers = alpa.AutoLayerOption(layer_num=2, remat_mode="coarse_grained_remat")
    hold_steps("gpt", method("zero_bubble", "cfp", 2, 2, layer_option=layers))


def test_the_schedule_is_chosen_by_alpas_table_where_alpa_chooses_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[LayerCosts, Sequence[Run]]] = []
    fastest = LayerCosts.fastest
    monkeypatch.setattr(
        LayerCosts, "fastest", lambda costs, whole: seen.append((costs, whole)) or fastest(costs, whole)
    )
    one: Any = ((1, 2),)
    option = CFPOption(stage_costs="compose", progress=False)
    stage_option = alpa.AutoStageOption(submesh_physical_shape_space="manual", manually_specified_submeshes=one)
    asked = method("auto", "cfp", 4, 4, stage_option=stage_option, default_auto_sharding_option=option)
    parallel = hold_steps("gpt", asked)
    ((costs, whole),) = seen
    assert len(whole) == 4
    assert all(0 < costs.cost_s(run[0], run[-1], mesh) < 1 for mesh, run in enumerate(whole))
    # With as many micro-batches as stages a mesh waits for much of the step.
    assert parallel.get_last_executable().schedule.name == "zero_bubble"


def test_too_few_layers_are_an_error_that_says_how_many_are_needed_and_alpa_is_left_as_it_was() -> None:
    before = [getattr(compile_executable, name) for name in REPLACED]
    with pytest.raises(OptionError, match="3 stages on each of 2 meshes need 6 layers, and the model is cut into 2"):
        hold_steps("mlp", method("interleaved_1f1b", "ilp", 2, 2, virtual_stages=3))
    assert [getattr(compile_executable, name) for name in REPLACED] == before


@pytest.mark.parametrize("schedule", ["zero_bubble", "auto"])
def test_layers_marked_by_hand_that_are_more_than_the_meshes_are_an_error_that_says_what_to_give(schedule: str) -> None:
    weights = [np.ones((16, 16), np.float32) for _ in range(4)]
    batch = {key: np.ones((16, 16), np.float32) for key in "xy"}
    asked = method(
        schedule, "cfp", 5, 2, layer_option=alpa.ManualLayerOption(), stage_option=alpa.UniformStageOption(num_stages=2)
    )
    step = alpa.parallelize(lambda *args: chain(*args, alpa.value_and_grad, alpa.mark_pipeline_boundary), method=asked)
    with pytest.raises(OptionError, match="each mesh has one stage, and alpa has made 5 for 2: give the devices"):
        step(weights, batch)
