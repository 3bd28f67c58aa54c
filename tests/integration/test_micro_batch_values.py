"""What `alpa.value_and_grad` gives beside gradients is, with micro-batches, what it is for the whole batch."""

from collections.abc import Callable
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa import AutoLayerOption, DataParallel, PipeshardParallel, ShardParallel, Zero2Parallel
from alpa.parallel_method import ParallelMethod

from alpa_cfp_bench.workloads.meshes import logical_mesh
from alpa_on_jax import errors
from integration.planned import ESTIMATE, method
from integration.serial import assert_equal_up_to_rounding

_RNG = np.random.default_rng(0)
WEIGHTS = {
    "first": (_RNG.normal(size=(16, 32)) * 0.3).astype(np.float32),
    "second": (_RNG.normal(size=(32, 4)) * 0.3).astype(np.float32),
}
BATCH = {"x": _RNG.normal(size=(32, 16)).astype(np.float32), "y": _RNG.integers(0, 4, 32)}
METHODS: dict[str, Callable[[str], ParallelMethod]] = {
    "ilp": lambda mesh: ShardParallel(logical_mesh(mesh), num_micro_batches=4),
    "data parallel": lambda mesh: DataParallel(logical_mesh(mesh), num_micro_batches=4),
    "zero-2": lambda mesh: Zero2Parallel(logical_mesh(mesh), num_micro_batches=2),
    "cfp": lambda mesh: method(mesh, ESTIMATE, 4),
}

Auxiliary = Callable[[Any, Any], Any]
VALUES: dict[str, Auxiliary] = {
    "a prediction": lambda logits, y: jnp.argmax(logits, -1),
    "a float for each sample": lambda logits, y: jax.nn.softmax(logits),
    "samples along another dim": lambda logits, y: logits.T,
    "a count": lambda logits, y: jnp.sum(jnp.argmax(logits, -1) == y),
    "two counts": lambda logits, y: jnp.sum(logits[:, 0] > 0) + jnp.sum(y == 1, dtype=jnp.int32),
    "a share": lambda logits, y: jnp.mean(jnp.argmax(logits, -1) == y),
    "the largest": lambda logits, y: jnp.max(logits),
    "the smallest": lambda logits, y: -jnp.max(-logits),
    "the largest of whole numbers": lambda logits, y: jnp.max(y),
    "whether any is": lambda logits, y: jnp.any(logits > 2.5),
    "whether all are": lambda logits, y: ~jnp.any(jnp.isnan(logits)),
    "a constant": lambda logits, y: jnp.int32(7),
    "a flag": lambda logits, y: jnp.bool_(True),
}


def _step(auxiliary: Auxiliary, value_and_grad: Any) -> Callable[[Any, Any], Any]:
    def step(weights: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            logits = jnp.tanh(batch["x"] @ weights["first"]) @ weights["second"]
            of_samples = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], -1)
            return -jnp.mean(of_samples), auxiliary(logits, batch["y"])

        (value, further), grads = value_and_grad(loss, has_aux=True)(weights)
        return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), value, further

    return step


def _run(auxiliary: Auxiliary, chosen: ParallelMethod) -> Any:
    step = _step(auxiliary, alpa.value_and_grad)
    return alpa.parallelize(step, method=chosen, batch_argnums=(1,), donate_argnums=())(WEIGHTS, BATCH)


@pytest.mark.parametrize("method_name", METHODS)
@pytest.mark.parametrize("mesh", ["1x8", "2x4"])
def test_values_of_all_kinds_are_those_of_the_batch(mesh: str, method_name: str) -> None:
    def auxiliary(logits: Any, y: Any) -> Any:
        return {name: value(logits, y) for name, value in VALUES.items()}

    found = _run(auxiliary, METHODS[method_name](mesh))
    expected = jax.jit(_step(auxiliary, jax.value_and_grad))(WEIGHTS, BATCH)
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, found), jax.tree.map(np.asarray, expected))


def test_a_sum_of_floats_is_averaged_as_in_alpa() -> None:
    _, _, found = _run(lambda logits, y: jnp.sum(logits), METHODS["ilp"]("1x8"))
    _, _, whole = jax.jit(_step(lambda logits, y: jnp.sum(logits), jax.value_and_grad))(WEIGHTS, BATCH)
    np.testing.assert_allclose(np.asarray(found), whole / 4, rtol=1e-5)


REFUSED: dict[str, tuple[Auxiliary, str]] = {
    "a place among samples": (lambda logits, y: jnp.argmax(logits[:, 0]), r"int32\[\].*is a whole number.*no average"),
    "a count that is divided": (lambda logits, y: jnp.sum(y) // 2, "made by .* is a whole number or a truth value"),
    "samples with each other": (lambda logits, y: logits @ logits.T, "several of its dims grow with the batch"),
    "samples among other things": (
        lambda logits, y: logits.reshape(-1),
        "a dim of it grows, and has other things in it than samples",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_of_the_batch_is_refused_in_words(name: str) -> None:
    auxiliary, message = REFUSED[name]
    with pytest.raises(errors.MicroBatchError, match=message):
        _run(auxiliary, METHODS["ilp"]("1x8"))


@pytest.mark.usefixtures("local_pipelines")
@pytest.mark.parametrize("name", ["a prediction", "a count", "the largest", "whether any is"])
def test_a_pipeline_refuses_what_it_would_average(name: str) -> None:
    chosen = PipeshardParallel(num_micro_batches=4, layer_option=AutoLayerOption(layer_num=2), stage_option="uniform")
    with pytest.raises(errors.MicroBatchError, match="a pipeline averages what its micro-batches give"):
        _run(VALUES[name], chosen)


def test_a_function_of_one_batch_size_alone_keeps_alpas_averages_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def auxiliary(logits: Any, y: Any) -> Any:
        return logits * np.ones((8, 1), np.float32)

    found = _run(auxiliary, METHODS["ilp"]("1x8"))
    assert found[2].shape == (8, 4)
    assert "is averaged over micro-batches as in Alpa, predictions and maxima, too" in caplog.text
