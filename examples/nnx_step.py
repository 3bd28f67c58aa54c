"""A training step with flax nnx, planned for a mesh by `alpa_cfp.autoshard`: split, plan, merge inside the step.

Takes nothing; plans a small residual network with AdamW on the machine's devices (8 virtual ones on a CPU) in a 2x4
mesh, prints where each kernel will lie, runs some steps and holds each loss against plain `jax.jit` on one device.
Exit code 0: the losses are equal; 1: they are not.
"""

import os
import sys

# Read when jax starts, so before it is imported; what the user has set stays.
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from alpa_cfp import CFPOption, autoshard

LAYERS, WIDTH, BATCH, STEPS = 3, 128, 256, 5
# float32 rounds at 6e-8; Adam divides small gradients by their own size, and passes what they differ by on.
TOLERANCE = 1e-4


class Layer(nnx.Module):
    """One residual layer: float[batch, width] to the same."""

    def __init__(self, width: int, rngs: nnx.Rngs):
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.down(nnx.gelu(self.up(self.norm(x))))


class Network(nnx.Module):
    """Layers one after the other."""

    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([Layer(WIDTH, rngs) for _ in range(LAYERS)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return x


def make_training() -> tuple[Network, nnx.Optimizer]:
    """The network and its optimizer, from a fixed seed."""
    network = Network(nnx.Rngs(0))
    return network, nnx.Optimizer(network, optax.adamw(1e-3), wrt=nnx.Param)


# A planned function takes and gives pytrees of arrays. So what is no array, the graph of the modules, stays outside;
# the step puts both together, updates them in place as nnx does, and gives the arrays back.
GRAPH, _ = nnx.split(make_training())


def train_step(state: nnx.State, x: jax.Array, y: jax.Array) -> tuple[nnx.State, jax.Array]:
    """One step: (the state of network and optimizer, x, y) -> (the new state, the loss before it)."""
    network, optimizer = nnx.merge(GRAPH, state)

    def loss(network: Network) -> jax.Array:
        return jnp.mean((network(x) - y) ** 2)

    value, grads = nnx.value_and_grad(loss)(network)
    optimizer.update(network, grads)
    return nnx.state((network, optimizer)), value


def main() -> int:
    """Plan, run and compare; gives back the exit code."""
    keys = jax.random.split(jax.random.key(1))
    x, y = (jax.random.normal(key, (BATCH, WIDTH)) for key in keys)
    rows = 2 if len(jax.devices()) % 2 == 0 else 1
    mesh = Mesh(np.array(jax.devices()).reshape(rows, -1), ("data", "model"))

    # CFPOption() measures on the mesh, which takes a minute or two; counting takes seconds.
    state = nnx.state(make_training())
    plan = autoshard(train_step, mesh, state, x, y, donate_argnums=0, option=CFPOption(costs="estimate"))
    for name, spec in plan.in_shardings.items():
        if (name.startswith("args[0][0]") and "kernel" in name) or name.startswith("args[1]"):
            print(f"{name:<50} {spec}")

    step, serial_step = plan.jit(train_step), jax.jit(train_step)
    serial_state = nnx.state(make_training())
    equal = True
    for number in range(1, STEPS + 1):
        state, loss = step(state, x, y)
        serial_state, serial_loss = serial_step(serial_state, x, y)
        equal = equal and bool(np.isclose(float(loss), float(serial_loss), rtol=TOLERANCE))
        print(f"step {number}: loss {float(loss):.6f}, with jax.jit on one device {float(serial_loss):.6f}")

    # What was trained goes back into modules, to be used as any others.
    network, _ = nnx.merge(GRAPH, state)
    print(f"after {STEPS} steps: loss {float(jnp.mean((network(x) - y) ** 2)):.6f}")
    print("every step equals jax.jit" if equal else "FAILED: the planned steps differ from jax.jit")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
