"""What pipelines within this process do beside schedules: layers, stages, inputs, states, followers, traces.

Most use one net of three layers, whose first weight is also its last: a weight in two stages.
"""

import itertools
import json
from collections.abc import Callable
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
    FollowParallel,
    ManualLayerOption,
    ManualShardingOption,
    ManualStageOption,
    UniformStageOption,
)
from alpa.device_mesh import ReplicatedDistributedArray
from alpa.util import count_communication_primitives
from jax.sharding import PartitionSpec

from alpa_on_jax import errors
from integration.pipelines import NUM_MICRO_BATCHES, hold_steps, pipeline
from integration.serial import assert_equal_up_to_rounding

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_pipelines")]
MANUAL = ManualLayerOption()


def net(params: Any, x: jax.Array, boundary: Callable[[], None] = alpa.mark_pipeline_boundary) -> jax.Array:
    """What three layers make of `x`; `boundary` is called between two."""
    hidden = jnp.tanh(x @ params["tied"])
    boundary()
    hidden = jnp.tanh(hidden @ params["first"])
    boundary()
    return jnp.tanh(hidden @ params["second"]) @ params["tied"].T


def weights() -> Any:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(16, 16)).astype(np.float32) / 4 for name in ("tied", "first", "second")}


def samples(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(16, 16)).astype(np.float32)


def descend(params: Any, grads: Any) -> Any:
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, params, grads)


def step_of(loss: Callable[..., Any], value_and_grad: Callable[..., Any] = alpa.value_and_grad) -> Any:
    """The step of a loss of (parameters, arrays)."""

    def step(params: Any, *arrays: Any) -> Any:
        value, grads = value_and_grad(lambda params: loss(params, *arrays))(params)
        return descend(params, grads), value

    return step


def hold(method: Any, loss: Callable[..., Any], *arrays: np.ndarray, **options: Any) -> Any:
    """Hold two steps of the net against the serial ones; gives the parallel step."""
    step: Any = alpa.parallelize(step_of(loss), method=method, **options)
    serial = jax.jit(step_of(loss, jax.value_and_grad))
    state, expected = weights(), (weights(), None)
    for _ in range(2):
        expected = jax.tree.map(np.asarray, serial(expected[0], *arrays))
        state, value = step(state, *arrays)
        assert_equal_up_to_rounding(jax.tree.map(np.asarray, (state, value)), expected)
    return step


def square_loss(params: Any, x: jax.Array) -> jax.Array:
    return jnp.mean(net(params, x) ** 2)


def unmarked_loss(params: Any, x: jax.Array) -> jax.Array:
    return jnp.mean(net(params, x, lambda: None) ** 2)


REMATERIALISING = {
    "manual": (square_loss, ManualLayerOption(remat_layer=True)),
    "automatic, coarse": (unmarked_loss, AutoLayerOption(2, remat_mode="coarse_grained_remat")),
    "automatic, fine": (
        unmarked_loss,
        AutoLayerOption(2, remat_mode="fine_grained_remat", fine_grained_remat_layer_num=2),
    ),
}
KEEPING = {"manual": (square_loss, ManualLayerOption()), "automatic": (unmarked_loss, AutoLayerOption(2))}
# Without the shapes, alpa makes each layer a stage.
THREE_STAGES = ManualStageOption([[0], [1], [2]], [(1, 4), (1, 2), (1, 2)], [(2, 2), (1, 2), (2, 1)], [{}, {}, {}])
TWO_STAGES = UniformStageOption(2, (1, 4), (2, 2), {})


def tanhs_of_backward_stages(step: Any) -> int:
    executable = step.get_last_executable()
    first = len(executable.mesh_group)
    return sum(text.count(" tanh(") for text in executable.get_hlo_text()[first : 2 * first])


@pytest.mark.parametrize("layers", REMATERIALISING)
def test_layers_that_are_computed_again_for_their_gradients_give_the_serial_step(layers: str) -> None:
    loss, option = REMATERIALISING[layers]
    step = hold(pipeline(2, layer_option=option, stage_option=TWO_STAGES), loss, samples())
    assert tanhs_of_backward_stages(step) == 3


@pytest.mark.parametrize("layers", KEEPING)
def test_layers_that_are_not_computed_again_give_the_serial_step(layers: str) -> None:
    loss, option = KEEPING[layers]
    step = hold(pipeline(2, layer_option=option, stage_option=TWO_STAGES), loss, samples())
    assert tanhs_of_backward_stages(step) == 0


def test_stages_of_unequal_meshes_that_are_given_one_by_one_equal_the_serial_step() -> None:
    step = hold(pipeline(3, layer_option=MANUAL, stage_option=THREE_STAGES), square_loss, samples())
    assert [mesh.shape for mesh in step.get_last_executable().mesh_group.meshes] == [(1, 4), (1, 2), (1, 2)]


@pytest.mark.parametrize("num_micro_batches", [1, 8])
def test_gradients_are_averaged_over_however_many_micro_batches(num_micro_batches: int) -> None:
    hold_steps("mlp", pipeline(2, num_micro_batches=num_micro_batches))


def test_several_batches_and_a_number_beside_them_reach_the_stages_that_use_them() -> None:
    def loss(params: Any, x: jax.Array, labels: jax.Array, both: jax.Array, scale: jax.Array) -> jax.Array:
        return jnp.mean((net(params, x * both) - labels * both) ** 2) * scale

    arrays = samples(), samples(2), samples(3), np.float32(3)
    method = pipeline(2, layer_option=MANUAL, stage_option=TWO_STAGES)
    step = hold(method, loss, *arrays, batch_argnums=(1, 2, 3))
    _, *placements = step.get_last_executable().get_input_placement_specs()
    assert [each.mesh_ids for each in placements] == [(0,), (1,), (0, 1), (1,)]


@pytest.mark.parametrize("prefer", [True, False])
def test_where_scattering_gradients_is_preferred_each_device_updates_a_part_which_is_gathered(prefer: bool) -> None:
    option = AutoShardingOption(force_data_parallel=True, prefer_reduce_scatter=prefer)
    step = hold_steps("mlp", pipeline(2, default_auto_sharding_option=option))
    updates = step.get_last_executable().get_hlo_text()[4:]
    gathers = [count_communication_primitives(text, ignore_scalar_all_reduce=True)[2] for text in updates]
    assert gathers == [int(prefer)] * 2


def test_stages_take_their_inputs_as_those_of_another_program_do() -> None:
    state = {name: weights()[name] for name in ("first", "second")}

    def predict(params: Any, batch: Any) -> jax.Array:
        hidden = jnp.tanh(batch["x"] @ params["first"])
        alpa.mark_pipeline_boundary()
        return hidden @ params["second"]

    def compiled(rows: int, **options: Any) -> Any:
        method = pipeline(
            2,
            num_micro_batches=1,
            layer_option=MANUAL,
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


def test_a_norm_over_all_stages_and_a_weight_in_two_of_them_are_as_in_the_serial_step() -> None:
    clip = optax.clip_by_global_norm(0.1)

    def step_with(value_and_grad: Any) -> Any:
        def step(params: Any, x: jax.Array) -> Any:
            value, grads = value_and_grad(lambda params: square_loss(params, x))(params)
            clipped, _ = clip.update(grads, clip.init(params))
            return descend(params, clipped), value, grads

        return step

    step = alpa.parallelize(
        step_with(alpa.value_and_grad), method=pipeline(3, layer_option=MANUAL, stage_option=THREE_STAGES)
    )
    serial, state = jax.jit(step_with(jax.value_and_grad)), weights()
    for _ in range(3):
        expected = jax.tree.map(np.asarray, serial(state, samples()))
        actual = jax.tree.map(np.asarray, step(jax.tree.map(jnp.array, state), samples()))
        assert_equal_up_to_rounding(actual, expected)
        assert optax.global_norm(expected[2]) > 0.2, "nothing is clipped"
        state = expected[0]
    placements, _ = step.get_last_executable().get_input_placement_specs()
    assert {name: each.mesh_ids for name, each in placements.items()} == {"tied": (0, 2), "first": (1,), "second": (2,)}


@pytest.fixture
def trained() -> Any:
    """A step in two stages, and the parameters after it."""
    step = alpa.parallelize(step_of(square_loss), method=pipeline(2, layer_option=MANUAL, stage_option=TWO_STAGES))
    state, _ = step(weights(), samples())
    return step, state


@pytest.mark.parametrize(
    ("returned", "there"),
    [
        (lambda params, loss: (loss, params), r"that is float32\[\]"),
        (lambda params, loss: loss, r"that is float32\[\]"),
        (lambda params, loss: (params["first"], loss), r"that is float32\[\]"),
        (lambda params, loss: params["first"], "that is none"),
    ],
)
def test_an_array_that_is_donated_and_has_no_result_in_its_place_is_an_error(returned: Any, there: str) -> None:
    def step(params: Any, x: jax.Array) -> Any:
        loss, grads = alpa.value_and_grad(square_loss)(params, x)
        return returned(descend(params, grads), loss)

    method = pipeline(2, layer_option=MANUAL, stage_option=TWO_STAGES)
    with pytest.raises(errors.DonationError, match=f"of the arguments, float32.*, {there}.*return state, loss"):
        alpa.parallelize(step, method=method, donate_argnums=(0,))(weights(), samples())


def test_a_function_that_follows_runs_forward_through_the_stages_of_the_step(trained: Any) -> None:
    step, state = trained

    def predict(params: Any, x: jax.Array) -> jax.Array:
        return net(params, x, lambda: None)

    followed = step.get_last_executable().get_input_placement_specs()
    method = FollowParallel(step, num_micro_batches=2, get_input_placement_specs=lambda: followed)
    follow = alpa.parallelize(predict, method=method, donate_argnums=())
    actual = np.asarray(follow(state, samples()))
    assert_equal_up_to_rounding(actual, np.asarray(jax.jit(predict)(jax.tree.map(np.asarray, state), samples())))
    placements, _ = follow.get_last_executable().get_input_placement_specs()
    assert {name: placements[name] for name in weights()} == followed[0]


def test_a_state_is_restored_to_the_meshes_that_it_was_saved_from(trained: Any, tmp_path: Path) -> None:
    step, state = trained
    saved = jax.tree.map(np.array, state)
    alpa.save_checkpoint(str(tmp_path), state, 1)
    placements, _ = step.get_last_executable().get_input_placement_specs()
    restored = alpa.restore_checkpoint(str(tmp_path), 1, placements)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, restored), saved)
    continued = jax.tree.map(np.asarray, step(restored, samples()))
    expected = jax.jit(step_of(square_loss, jax.value_and_grad))(saved, samples())
    assert_equal_up_to_rounding(continued, jax.tree.map(np.asarray, expected))


def test_a_state_that_is_created_for_a_pipeline_lies_where_its_stages_want_it() -> None:
    step = alpa.parallelize(step_of(square_loss), method=pipeline(2, layer_option=MANUAL, stage_option=TWO_STAGES))

    def make() -> Any:
        return {name: jnp.arange(256.0).reshape(16, 16) / 256 - 0.4 for name in ("tied", "first", "second")}

    create = alpa.parallelize(make, method=CreateStateParallel(step, samples()), batch_argnums=())
    created = create()
    placements, _ = step.get_last_executable().get_input_placement_specs()
    assert placements["tied"].mesh_ids == (0, 1)
    assert {name for name, value in created.items() if isinstance(value, ReplicatedDistributedArray)} == {"tied"}
    actual = jax.tree.map(np.asarray, step(created, samples()))
    expected = jax.jit(step_of(square_loss, jax.value_and_grad))(make(), samples())
    assert_equal_up_to_rounding(actual, jax.tree.map(np.asarray, expected))


def test_a_trace_tells_when_each_stage_ran_for_each_micro_batch(trained: Any, tmp_path: Path, monkeypatch: Any) -> None:
    step, state = trained
    monkeypatch.setattr(alpa.global_config, "collect_trace", True)
    np.asarray(step(state, samples())[1])
    executable = step.get_last_executable()
    stages = executable.get_stage_execution_info()
    assert [len(runs) for runs in stages] == [NUM_MICRO_BATCHES] * 4 + [1] * 2
    for earlier, later in itertools.pairwise(stages[:4]):
        assert all(end <= start for (_, end, *_), (start, *_) in zip(earlier, later, strict=True))
    first, second = (mesh.devices for mesh in executable.mesh_group.meshes)
    assert [runs[0][3] for runs in stages] == [first, second, second, first, first, second]
    executable.dump_stage_execution_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["tid"] for event in events} == set(range(8))


def test_what_is_known_of_a_pipeline_is_written_to_a_folder(trained: Any, tmp_path: Path) -> None:
    step, _ = trained
    step.get_last_executable().dump_debug_info(str(tmp_path))
    programs = sorted(tmp_path.glob("*.hlo"))
    assert len(programs) == 6
    assert all("ENTRY" in program.read_text() for program in programs)
    assert len((tmp_path / "step_resharding_tasks.txt").read_text().split("ReshardingTask(")) > 1


def test_what_a_stage_is_given_split_stays_split_behind_it() -> None:
    batch = {"x": np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)}
    matrices = {name: weights()[name] for name in ("first", "second")}

    def step_with(value_and_grad: Any) -> Any:
        def step(matrices: Any, batch: Any) -> Any:
            def loss(matrices: Any) -> jax.Array:
                hidden = jnp.tanh(batch["x"] @ matrices["first"])
                alpa.mark_pipeline_boundary()
                return jnp.mean((hidden @ matrices["second"]) ** 2)

            _, grads = value_and_grad(loss)(matrices)
            return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, matrices, grads)

        return step

    split = {"first": PartitionSpec(None, "model"), "second": PartitionSpec("model", None)}
    method = pipeline(
        2,
        layer_option=MANUAL,
        default_auto_sharding_option=AutoShardingOption(enable_auto_sharding=False),
        manual_sharding_option=ManualShardingOption(None, [("data", "model")] * 2, (split, None)),
    )
    # Nothing says that the new weights lie as the old ones: they are not donated.
    step = alpa.parallelize(step_with(alpa.value_and_grad), method=method, donate_argnums=())
    expected = jax.tree.map(np.asarray, jax.jit(step_with(jax.value_and_grad))(matrices, batch))
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, step(matrices, batch)), expected)
    executable = step.get_last_executable()
    given, results = executable.get_input_placement_specs()[0], executable.get_output_placement_specs()
    for name in matrices:
        assert results[name].sharding_specs == given[name].sharding_specs
        assert "Chunked" in str(given[name].sharding_specs)
