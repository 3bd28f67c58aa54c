"""The nets that are written here are what they are called: each does what defines its architecture."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp_bench.workloads.lstm import LstmLayer
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import Size
from alpa_cfp_bench.workloads.t5 import T5, bucket_of
from alpa_cfp_bench.workloads.vit import PATCH, Vit

pytestmark = pytest.mark.slow

SMALL = Size(batch=2, hidden=16, heads=2, sequence=12, vocabulary=24, layers=1)


@pytest.fixture(scope="module")
def t5() -> tuple[T5, Any, dict[str, jax.Array]]:
    model = build("t5", SMALL)
    return T5(SMALL.vocabulary, SMALL.hidden, SMALL.layers, SMALL.heads), model.state.params, model.batch


def logits_of(t5: tuple[T5, Any, dict[str, jax.Array]], **changes: jax.Array) -> np.ndarray:
    module, params, batch = t5
    inputs = {name: changes.get(name, batch[name]) for name in ("source_ids", "source_mask", "target_ids")}
    logits = module.apply(params, *inputs.values())
    assert isinstance(logits, jax.Array)
    return np.asarray(logits)


def test_a_target_token_of_t5_sees_only_those_before_it(t5: tuple[T5, Any, dict[str, jax.Array]]) -> None:
    target = t5[2]["target_ids"]
    place = target.shape[1] // 2
    changed = logits_of(t5, target_ids=target.at[:, place].add(1))
    before = logits_of(t5)
    np.testing.assert_array_equal(changed[:, :place], before[:, :place])
    assert np.all(np.any(changed[:, place:] != before[:, place:], axis=-1))


def test_padding_of_the_source_of_t5_changes_nothing_and_its_tokens_do(
    t5: tuple[T5, Any, dict[str, jax.Array]],
) -> None:
    source, mask = t5[2]["source_ids"], t5[2]["source_mask"]
    assert 0 < int(jnp.sum(mask == 0)) < mask.size
    before = logits_of(t5)
    np.testing.assert_allclose(logits_of(t5, source_ids=jnp.where(mask > 0, source, 7)), before, rtol=1e-6)
    # Each target token attends to the source.
    assert np.all(np.any(logits_of(t5, source_ids=source.at[:, 0].add(1)) != before, axis=-1))


@pytest.mark.parametrize("both_ways", [True, False])
def test_relative_positions_are_told_apart_when_near_and_binned_when_far(both_ways: bool) -> None:
    before = bucket_of(-np.arange(400), both_ways)
    near = 8 if both_ways else 16
    np.testing.assert_array_equal(before[: near + 1], np.arange(near + 1))
    assert np.all(np.diff(before) >= 0)
    assert before[127] == before[399] == (15 if both_ways else 31)
    after = bucket_of(np.arange(1, 400), both_ways)
    # Buckets of their own, of as many; without them all later positions are one, which is masked.
    np.testing.assert_array_equal(after, before[1:] + 16 if both_ways else np.zeros(399))


def test_an_lstm_layer_is_the_loop_over_its_steps() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 3)), jnp.float32)
    layer = LstmLayer(4)
    params = jax.tree.map(np.asarray, layer.init(jax.random.key(0), x))["params"]

    def sigmoid(z: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-z))

    h = cell = np.zeros((2, 4))
    for step in range(5):
        gates = np.einsum("bi,igh->bgh", x[:, step], params["input"]["kernel"]) + params["input"]["bias"]
        gates = gates + np.einsum("bh,hgk->bgk", h, params["recurrent"])
        cell = sigmoid(gates[:, 0]) * cell + sigmoid(gates[:, 1]) * np.tanh(gates[:, 3])
        h = sigmoid(gates[:, 2]) * np.tanh(cell)
        np.testing.assert_allclose(jnp.asarray(layer.apply({"params": params}, x))[:, step], h, rtol=1e-5, atol=1e-6)


def test_a_vision_transformer_sees_each_pixel_and_tells_patches_apart() -> None:
    image = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2 * PATCH, 2 * PATCH, 3)), jnp.float32)
    module = Vit(classes=8, hidden=16, layers=1, heads=2)
    params = module.init(jax.random.key(0), image)

    def logits(image: jax.Array) -> jax.Array:
        result = module.apply(params, image)
        assert isinstance(result, jax.Array)
        return result

    gradient = jax.grad(lambda image: jnp.sum(logits(image) ** 2))(image)
    assert np.all(np.asarray(gradient) != 0)
    # The mean over patches does not know their order; the learned positions do.
    assert float(jnp.max(jnp.abs(logits(image) - logits(image[:, ::-1])))) > 1e-3


def test_a_gpt_in_bfloat16_keeps_float32_masters_and_gradients() -> None:
    model, exact = build("gpt_bf16", SMALL), build("gpt", SMALL)
    grad = jax.jit(jax.grad(lambda params, model=model: model.loss(params, model.state, model.batch)[0]))
    for tree in (model.state.params, model.state.opt_state, grad(model.state.params)):
        assert {leaf.dtype for leaf in jax.tree.leaves(tree)} == {jnp.dtype(jnp.float32)}
    text = grad.lower(model.state.params).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert sum("bf16" in line.rsplit("->", 1)[1] for line in products) > len(products) // 2
    assert model.rounding > exact.rounding == 0
