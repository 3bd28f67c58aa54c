"""Every program equals the serial run: each model, mesh, manual sharding, with and without micro-batches."""

import math
from typing import Any

import jax
import numpy as np
import pytest

from alpa_cfp_bench.workloads.models import MODELS, build
from alpa_cfp_bench.workloads.shardings import state_specs
from alpa_cfp_bench.workloads.sizes import MESH_AXES, mesh_shape
from integration.parallel import NUM_STEPS, Case, cases, run
from integration.serial import RELATIVE_TOLERANCE, StepValues, assert_equal_up_to_rounding, expected_steps, run_serially

pytestmark = pytest.mark.slow

every_case = pytest.mark.parametrize("case", cases(), ids=str)
every_language_model_case = pytest.mark.parametrize("case", cases("gpt", "bert", "moe"), ids=str)


def expected(case: Case) -> list[StepValues]:
    """The serial values of `case`; the same for all meshes and shardings of a model."""
    return expected_steps(case.model, case.num_micro_batches, NUM_STEPS)


@every_case
def test_the_state_after_two_sgd_steps_equals_the_serial_one(case: Case) -> None:
    assert_equal_up_to_rounding(run(case).steps[-1].state, expected(case)[-1].state)


@every_case
def test_gradients_of_each_step_equal_the_serial_ones(case: Case) -> None:
    for actual, wanted in zip(run(case).steps, expected(case), strict=True):
        assert_equal_up_to_rounding(actual.grads, wanted.grads)


@every_case
def test_metrics_of_each_step_equal_the_serial_ones(case: Case) -> None:
    for actual, wanted in zip(run(case).steps, expected(case), strict=True):
        assert_equal_up_to_rounding(actual.metrics, wanted.metrics)


def _embedding(values: StepValues, name: str) -> np.ndarray:
    params = values.grads["params"]
    return (params["bert"] if "bert" in params else params["transformers"])["embeddings"][name]["embedding"]


@every_language_model_case
def test_word_embedding_gradient_equals_the_serial_one(case: Case) -> None:
    # Its rows are gathered by token and scattered back: an out-of-range row on another shard must add nothing.
    for actual, wanted in zip(run(case).steps, expected(case), strict=True):
        assert_equal_up_to_rounding(_embedding(actual, "word_embeddings"), _embedding(wanted, "word_embeddings"))


@every_language_model_case
def test_position_embedding_gradient_equals_the_serial_one(case: Case) -> None:
    for actual, wanted in zip(run(case).steps, expected(case), strict=True):
        assert_equal_up_to_rounding(
            _embedding(actual, "position_embeddings"), _embedding(wanted, "position_embeddings")
        )


@pytest.mark.parametrize("case", cases("moe"), ids=str)
def test_rows_of_tokens_that_do_not_occur_get_no_embedding_gradient(case: Case) -> None:
    # The MoE model's embedding is not tied to the decoder, so such a row has no other source of gradient.
    absent = np.setdiff1d(np.arange(64), np.asarray(build("moe").batch["input_ids"]))
    assert absent.size > 0
    gradient = _embedding(run(case).steps[0], "word_embeddings")
    assert not np.any(gradient[absent])
    assert np.all(np.any(gradient != 0, axis=1)[np.setdiff1d(np.arange(64), absent)])


@every_case
def test_the_new_state_lies_on_the_devices_as_the_manual_sharding_says(case: Case) -> None:
    # Otherwise a program that replicates everything would pass as well, and one that changes the sharding of the state
    # would move it before each step.
    shape = mesh_shape(case.mesh)
    mesh = jax.sharding.Mesh(np.array(jax.local_devices()[: math.prod(shape)]).reshape(shape), MESH_AXES)

    def check(path: Any, array: jax.Array, spec: jax.sharding.PartitionSpec) -> None:
        wanted = jax.sharding.NamedSharding(mesh, spec).shard_shape(array.shape)
        shapes = {shard.data.shape for shard in array.addressable_shards}
        assert shapes == {wanted}, f"{jax.tree_util.keystr(path)}: shards {shapes}, expected {wanted}"

    jax.tree_util.tree_map_with_path(check, run(case).state, state_specs(build(case.model), case.style))


@pytest.mark.parametrize("num_micro_batches", [None, 2])
@pytest.mark.parametrize("model", MODELS)
def test_two_steps_change_every_parameter_by_much_more_than_the_tolerance(
    model: str, num_micro_batches: int | None
) -> None:
    # What the comparisons above are worth: a program that does not train must fail them.
    before, after = build(model).state.params, expected_steps(model, num_micro_batches, NUM_STEPS)[-1].state.params

    def check(path: Any, old: jax.Array, new: np.ndarray) -> None:
        change = np.max(np.abs(new - np.asarray(old))) / np.max(np.abs(new))
        assert change > 20 * RELATIVE_TOLERANCE, f"{jax.tree_util.keystr(path)} changes by {change:.3g}"

    jax.tree_util.tree_map_with_path(check, before, after)


def test_the_comparison_refuses_a_gradient_that_lacks_one_sample() -> None:
    model = build("gpt")
    short = jax.tree.map(lambda array: array[1:], model.batch)

    def gradient(batch: Any) -> Any:
        return run_serially(jax.grad(model.loss, has_aux=True), model.state.params, model.state, batch)[0]

    with pytest.raises(AssertionError, match="differs by"):
        assert_equal_up_to_rounding(gradient(short), gradient(model.batch))
