"""`autoshard` in a program of several processes, as SLURM starts it: `srun python examples/several_processes.py`.

Each process has some of the devices and makes the same calls: the first one plans, all measure, all get the same plan,
and all run it. Prints where each array is and the loss of each step. Without SLURM, Kubernetes or another launcher that
JAX knows, say in each process which one it is: `--coordinator 127.0.0.1:12345 --processes 2 --process 0`.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alpa_cfp import PlanOptions, autoshard

WIDTH, BATCH, STEPS = 64, 4096, 5
Params = dict[str, jax.Array]


def train_step(params: Params, x: jax.Array, y: jax.Array) -> tuple[Params, jax.Array]:
    """One step of gradient descent: (params, x, y) -> (the new params, the loss)."""

    def loss_of(params: Params) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, params, grads), loss


def make_params(key: jax.Array) -> Params:
    """The first parameters."""
    up, down = jax.random.split(key)
    shape = WIDTH, 4 * WIDTH
    return {"up": jax.random.normal(up, shape) / 8, "down": jax.random.normal(down, shape[::-1]) / 16}


def make_batch(sharding: Any) -> jax.Array:
    """A global array, of which each process makes the samples that its devices have."""

    def samples(index: Any) -> np.ndarray:
        first, last, _ = index[0].indices(BATCH)
        return np.sin(np.arange(first * WIDTH, last * WIDTH, dtype=np.float32)).reshape(-1, WIDTH)[:, index[1]]

    return jax.make_array_from_callback((BATCH, WIDTH), sharding, samples)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", help="host:port of process 0; by default what the launcher says")
    parser.add_argument("--processes", type=int, help="how many there are")
    parser.add_argument("--process", type=int, help="which one this is")
    parser.add_argument("--costs", choices=("measure", "estimate"), default="measure", help="see PlanOptions")
    parser.add_argument("--database", help="where process 0 keeps profiles; by default the user's database")
    arguments = parser.parse_args()
    jax.distributed.initialize(arguments.coordinator, arguments.processes, arguments.process)
    is_first = jax.process_index() == 0

    mesh = jax.make_mesh((jax.device_count(),), ("devices",))
    key = jax.random.key(0)
    batch = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
    shapes = jax.eval_shape(make_params, key), batch, batch

    option = PlanOptions(costs=arguments.costs, database=arguments.database, progress=is_first)
    plan = autoshard(train_step, mesh, *shapes, donate_argnums=0, option=option)
    step = plan.jit(train_step).compile(*shapes)
    if is_first:
        print(plan.in_shardings)

    (of_params, of_x, of_y), _ = step.input_shardings
    params = jax.jit(make_params, out_shardings=of_params)(key)
    x, y = make_batch(of_x), make_batch(of_y)
    for _ in range(STEPS):
        params, loss = step(params, x, y)
        print(f"process {jax.process_index()} of {jax.process_count()}: loss {float(loss):.6f}", flush=True)


if __name__ == "__main__":
    main()
