"""Programs with decompositions and solves are measured, planned and run as others are."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from alpa_cfp import CFPOption, autoshard
from integration.serial import assert_equal_up_to_rounding, run_serially

pytestmark = pytest.mark.slow

Weights = dict[str, jax.Array]


def loss(weights: Weights, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ weights["up"]) @ weights["down"] - y) ** 2)


def inverse_fourth_root(statistics: jax.Array) -> jax.Array:
    values, vectors = jnp.linalg.eigh(statistics + 0.1 * jnp.eye(statistics.shape[0]))
    return (vectors * values**-0.25) @ vectors.T


def shampoo_step(weights: Weights, left: Weights, right: Weights, x: jax.Array, y: jax.Array) -> Any:
    value, gradients = jax.value_and_grad(loss)(weights, x, y)
    left = jax.tree.map(lambda old, g: old + g @ g.T, left, gradients)
    right = jax.tree.map(lambda old, g: old + g.T @ g, right, gradients)

    def updated(weight: jax.Array, g: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
        return weight - 0.1 * inverse_fourth_root(rows) @ g @ inverse_fourth_root(columns)

    return jax.tree.map(updated, weights, gradients, left, right), left, right, value


def test_a_shampoo_step_is_measured_and_equals_the_serial_one(tmp_path: Path) -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    weights = {"up": jax.random.normal(keys[0], (16, 32)) / 4, "down": jax.random.normal(keys[1], (32, 8)) / 4}
    left = {name: jnp.eye(weight.shape[0]) for name, weight in weights.items()}
    right = {name: jnp.eye(weight.shape[1]) for name, weight in weights.items()}
    x, y = jax.random.normal(keys[2], (8, 16)), jax.random.normal(keys[3], (8, 8))
    option = CFPOption(database=tmp_path / "profiles.db", samples=1, refine=1, pruning_margin=1.0, progress=False)
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    plan = autoshard(shampoo_step, mesh, weights, left, right, x, y, option=option)
    found = jax.tree.map(np.asarray, plan.jit(shampoo_step)(weights, left, right, x, y))
    assert_equal_up_to_rounding(found, run_serially(shampoo_step, weights, left, right, x, y))
