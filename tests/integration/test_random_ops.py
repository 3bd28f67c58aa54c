"""Random numbers in a step cost its blocks nothing: plans with dropout communicate what plans without it do."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from alpa_cfp import CFPOption, Plan, autoshard
from integration.serial import assert_equal_up_to_rounding, run_serially

pytestmark = pytest.mark.slow

SAMPLES, WIDTH, HIDDEN = 512, 64, 256
DRAWS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "dropout": lambda key, h: jnp.where(jax.random.bernoulli(key, 0.9, h.shape), h / 0.9, 0),
    "noise": lambda key, h: h + jax.random.normal(key, h.shape),
    "one number a sample": lambda key, h: h * jax.random.uniform(key, (h.shape[0], 1)),
    "split keys": lambda key, h: h * jax.random.uniform(jax.random.split(key)[0], h.shape),
    "categories": lambda key, h: h + jax.random.categorical(key, h)[:, None],
    "truncated": lambda key, h: h + jax.random.truncated_normal(key, -1, 1, h.shape),
}


def step(draw: Callable[[jax.Array, jax.Array], jax.Array] | None) -> Callable[..., Any]:
    """A training step of two dense layers, with random numbers between them."""

    def loss(weights: dict[str, jax.Array], x: jax.Array, key: jax.Array) -> jax.Array:
        h = jax.nn.relu(x @ weights["up"])
        h = h if draw is None else draw(key, h)
        return jnp.mean((h @ weights["down"]) ** 2)

    def train(weights: dict[str, jax.Array], x: jax.Array, key: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights, x, key)
        return jax.tree.map(lambda weight, each: weight - 0.1 * each, weights, gradient), value

    return train


def arguments() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    weights = {"up": rng.normal(size=(WIDTH, HIDDEN)) / 8, "down": rng.normal(size=(HIDDEN, WIDTH)) / 16}
    x = rng.normal(size=(SAMPLES, WIDTH))
    return jax.tree.map(jnp.float32, weights), jnp.float32(x), jax.random.key(3)


def planned(fn: Callable[..., Any], *shape: int) -> Plan:
    mesh = Mesh(np.array(jax.devices()).reshape(shape), ("data", "model")[: len(shape)])
    return autoshard(fn, mesh, *arguments(), option=CFPOption(costs="estimate"))


def communicated(plan: Plan) -> list[tuple[str, int, int]]:
    """What each kind of block communicates with each of its strategies."""
    assert plan.account is not None
    return [
        (each.kind, each.size_bytes, each.count)
        for kind in plan.account.kinds
        for alternative in kind.alternatives
        for each in alternative.communication
    ]


def test_dropout_changes_nothing_of_what_any_strategy_communicates() -> None:
    assert communicated(planned(step(DRAWS["dropout"]), 8)) == communicated(planned(step(None), 8)) != []


@pytest.mark.parametrize("shape", [(8,), (2, 4)], ids=["8", "2x4"])
@pytest.mark.parametrize("draw", DRAWS)
def test_each_device_draws_its_part_of_the_numbers_that_one_device_would_draw(
    draw: str, shape: tuple[int, ...]
) -> None:
    fn = step(DRAWS[draw])
    plan = planned(fn, *shape)
    assert plan.account is not None
    assert not [caveat.text for caveat in plan.account.caveats if "left to XLA" in caveat.text]
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, plan.jit(fn)(*arguments())), run_serially(fn, *arguments()))
