"""A training step of plain JAX, planned for a mesh by `alpa_cfp.autoshard`: no flax, no `alpa.parallelize`.

Takes nothing; plans a small residual network on the machine's devices (8 virtual ones on a CPU), prints where each
array will lie, saves the plan and loads it again, runs some steps and holds each loss against plain `jax.jit` on one
device. Nothing in the step says how it is split. Exit code 0: the losses are equal; 1: they are not.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

# Read when jax starts, so before it is imported; what the user has set stays.
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from alpa_cfp import CFPOption, Plan, autoshard

LAYERS, WIDTH, BATCH, STEPS = 4, 64, 1024, 5
Weights = dict[str, jax.Array]


def layer(x: jax.Array, weights: Weights) -> tuple[jax.Array, None]:
    """One residual layer."""
    return x + jax.nn.gelu(x @ weights["up"]) @ weights["down"], None


def train_step(state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
    """One step of gradient descent with momentum: ((weights, momentum), x, y) -> (the new state, the loss)."""
    weights, momentum = state

    def loss(weights: Weights) -> jax.Array:
        predicted, _ = jax.lax.scan(layer, x, weights)
        return jnp.mean((predicted - y) ** 2)

    value, grads = jax.value_and_grad(loss)(weights)
    momentum = jax.tree.map(lambda old, grad: 0.9 * old + grad, momentum, grads)
    weights = jax.tree.map(lambda old, step: old - 0.1 * step, weights, momentum)
    return (weights, momentum), value


def make_state() -> Any:
    """The weights of all layers, stacked, and their momentum, from a fixed seed."""
    up, down = jax.random.split(jax.random.key(0))
    weights = {
        "up": jax.random.normal(up, (LAYERS, WIDTH, 4 * WIDTH)) / WIDTH,
        "down": jax.random.normal(down, (LAYERS, 4 * WIDTH, WIDTH)) / WIDTH,
    }
    return weights, jax.tree.map(jnp.zeros_like, weights)


def main() -> int:
    """Plan, save, load, run and compare; gives back the exit code."""
    parser = argparse.ArgumentParser(description="a plain JAX training step, planned by alpa_cfp.autoshard")
    parser.add_argument(
        "--costs",
        choices=["estimate", "measure"],
        default="estimate",
        help="count what parts of the step cost, which takes seconds (the default), or measure it, a minute or two",
    )
    arguments = parser.parse_args()
    keys = jax.random.split(jax.random.key(1))
    x, y = (jax.random.normal(key, (BATCH, WIDTH)) for key in keys)
    mesh = Mesh(np.array(jax.devices()), ("devices",))

    plan = autoshard(train_step, mesh, make_state(), x, y, donate_argnums=0, option=CFPOption(costs=arguments.costs))
    for name, spec in plan.in_shardings.items():
        print(f"{name:<20} {spec}")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        plan.save(path)
        # Here or in another process: nothing is measured or searched again.
        step = Plan.load(path).jit(train_step)
    serial_step = jax.jit(train_step)
    state, serial_state = make_state(), make_state()
    equal = True
    for number in range(1, STEPS + 1):
        state, loss = step(state, x, y)
        serial_state, serial_loss = serial_step(serial_state, x, y)
        equal = equal and bool(np.isclose(float(loss), float(serial_loss), rtol=1e-5))
        print(f"step {number}: loss {float(loss):.6f}, with jax.jit on one device {float(serial_loss):.6f}")
    print("every step equals jax.jit" if equal else "FAILED: the planned steps differ from jax.jit")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
