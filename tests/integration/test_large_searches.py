"""Programs whose exact search would need more memory or time than there is are planned all the same, and right."""

import logging
import re
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from alpa_cfp import CFPOption
from integration.planned import method
from integration.serial import assert_equal_up_to_rounding, run_serially

_RNG = np.random.default_rng(0)
_LAYERS, _WIDTH, _HEADS, _VOCABULARY, _LENGTH = 6, 64, 4, 256, 32
_SHAPES = {
    "qkv": (_LAYERS, _WIDTH, 3 * _WIDTH),
    "out": (_LAYERS, _WIDTH, _WIDTH),
    "up": (_LAYERS, _WIDTH, 4 * _WIDTH),
    "down": (_LAYERS, 4 * _WIDTH, _WIDTH),
    "table": (_VOCABULARY, _WIDTH),
    "positions": (_LENGTH, _WIDTH),
}
WEIGHTS = {name: (_RNG.normal(size=shape) / 8).astype(np.float32) for name, shape in _SHAPES.items()}
TOKENS = _RNG.integers(0, _VOCABULARY, (8, _LENGTH))


def _normalized(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


@jax.checkpoint
def _layer(x: Any, weights: Any) -> tuple[Any, None]:
    query, key, value = jnp.split((_normalized(x) @ weights["qkv"]).reshape(8, _LENGTH, _HEADS, -1), 3, -1)
    scores = jnp.einsum("bthd,bshd->bhts", query, key) / 4
    seen = jnp.tril(jnp.ones((_LENGTH, _LENGTH), bool))
    attention = jax.nn.softmax(jnp.where(seen, scores, -1e9), -1)
    x = x + jnp.einsum("bhts,bshd->bthd", attention, value).reshape(x.shape) @ weights["out"]
    return x + jax.nn.gelu(_normalized(x) @ weights["up"]) @ weights["down"], None


def _loss(weights: Any, tokens: Any) -> Any:
    """A GPT of a scan over layers that are recomputed: every layer reads the same masks and positions."""
    layers = {name: weights[name] for name in ("qkv", "out", "up", "down")}
    x, _ = lax.scan(_layer, weights["table"][tokens] + weights["positions"], layers)
    logits = jax.nn.log_softmax(x @ weights["table"].T)
    return -jnp.mean(jnp.take_along_axis(logits, tokens[..., None], -1))


def _step(weights: Any, tokens: Any, value_and_grad: Any = jax.value_and_grad) -> Any:
    value, grads = value_and_grad(_loss)(weights, tokens)
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), value


def test_a_program_whose_exact_search_needs_more_memory_than_it_may_have_is_planned_right(
    caplog: pytest.LogCaptureFixture,
) -> None:
    option = CFPOption(costs="estimate", progress=False, search_memory_bytes=2**24)
    parallel = alpa.parallelize(
        lambda weights, tokens: _step(weights, tokens, alpa.value_and_grad),
        method=method("2x4", option),
        donate_argnums=(),
    )
    with caplog.at_level(logging.INFO):
        found = parallel(WEIGHTS, TOKENS)
    assert_equal_up_to_rounding(found, run_serially(_step, WEIGHTS, TOKENS))
    # Gigabytes are needed, and what is found without them is proved to be the best, or how close to it it is.
    assert re.search(r"because the exact search needs \d[\d.]*e\+\d+ bytes, where 16,777,216 are allowed", caplog.text)
    (plan,) = option.plans
    assert plan.account is not None
    assert plan.account.gap_s is not None
    assert plan.account.gap_s <= 0.1 * plan.predicted_s
