"""Programs with loops equal the serial run under drawn strategies of each block, those of the loops among them."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from integration.planned import DrawnPlan, planned_function

pytestmark = pytest.mark.slow

SAMPLES, WIDTH, HIDDEN, STEPS = 16, 8, 32, 3
Weights = dict[str, jax.Array]


def wave(*shape: int, scale: float = 0.3) -> jax.Array:
    return (scale * jnp.sin(1.7 * jnp.arange(float(math.prod(shape))))).reshape(shape)


def layers(weights: Weights, x: jax.Array) -> jax.Array:
    """Layers of a residual net in a scan, between two projections."""

    def layer(c: jax.Array, of_layer: Weights) -> tuple[jax.Array, None]:
        inner = jnp.tanh(c @ of_layer["up"] + of_layer["bias"])
        return c + inner @ of_layer["down"], None

    stacked = {name: weights[name] for name in ("up", "bias", "down")}
    return lax.scan(layer, x @ weights["first"], stacked)[0] @ weights["last"]


def recurrence(weights: Weights, x: jax.Array) -> jax.Array:
    """A gated recurrence over the steps of a sequence."""

    def step(c: jax.Array, each: jax.Array) -> tuple[jax.Array, jax.Array]:
        inner = each + c @ weights["down"][0].T[:WIDTH, :] @ weights["down"][1]
        c = jnp.where(each > 0, jnp.tanh(inner) + weights["bias"][0, :WIDTH], c)
        return c, c

    sequence = jnp.stack([x @ weights["first"] * scale for scale in (1.0, -0.5, 0.25)])
    return lax.scan(step, jnp.zeros((SAMPLES, WIDTH)), sequence)[1].sum(0) @ weights["last"]


def training_step(model: Callable[[Weights, jax.Array], jax.Array]) -> Callable[[Weights, jax.Array], Any]:
    def step(weights: Weights, x: jax.Array) -> tuple[Weights, jax.Array]:
        loss, gradients = jax.value_and_grad(lambda weights: jnp.mean((model(weights, x) - 1) ** 2))(weights)
        return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients), loss

    return step


@pytest.mark.parametrize("kept", [False, True], ids=["", "state too"])
@pytest.mark.parametrize("mesh", ["1x8", "2x4"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("model", [layers, recurrence])
def test_a_training_step_with_loops_equals_the_serial_one_however_its_blocks_are_split(
    model: Callable[[Weights, jax.Array], jax.Array], seed: int, mesh: str, kept: bool
) -> None:
    weights = {
        "first": wave(WIDTH, WIDTH),
        "up": wave(STEPS, WIDTH, HIDDEN),
        "bias": wave(STEPS, HIDDEN),
        "down": wave(STEPS, HIDDEN, WIDTH),
        "last": wave(WIDTH, WIDTH),
    }
    option = DrawnPlan(seed=seed, kept=kept)
    planned_function(training_step(model), weights, wave(SAMPLES, WIDTH, scale=1.0), mesh=mesh, option=option)
