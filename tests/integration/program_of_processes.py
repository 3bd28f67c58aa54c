"""A `jax.distributed` program as a user writes one, run by a test in several processes: RANK COUNT PORT FOLDER WHAT.

Leaves `RANK.json` in the folder, and with it the values that `steps` gives. What goes wrong in one process is made to
go wrong here: the name says what. Invariant: nothing is compared here, so that the serial run is that of another
process.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alpa_cfp import Plan, PlanOptions, autoshard
from alpa_cfp.errors import CFPError
from alpa_cfp.profiling.process.protocol import MeasureTask
from alpa_cfp.profiling.processes import joining, measuring
from alpa_cfp.profiling.processes.hosts import WorkerHost
from alpa_cfp.search import MemoryBudgetError, SearchError

NUM_STEPS = 2
Params = dict[str, jax.Array]


def start() -> tuple[Any, np.ndarray]:
    """The first parameters and the batch, the same in each process."""
    weights = np.random.default_rng(0)
    params = {"up": weights.normal(size=(32, 64)), "down": weights.normal(size=(64, 32))}
    params = {name: np.asarray(value / 8, np.float32) for name, value in params.items()}
    return params, np.asarray(weights.normal(size=(2048, 32)), np.float32)


def train_step(params: Params, x: jax.Array) -> tuple[Params, jax.Array]:
    """A training step of two layers."""

    def loss_of(params: Params) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"] - 1) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, params, grads), loss


def shapes() -> Any:
    return jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype), start())


def options(folder: Path, **changes: Any) -> PlanOptions:
    """Options under which little is measured; each process has a database of its own."""
    few = {"samples": 1, "refine": 1, "baselines": False, "pruning_margin": 1.0}
    return PlanOptions(database=folder / f"{jax.process_index()}.sqlite", progress=False, **(few | changes))


def planned(mesh: jax.sharding.Mesh, option: PlanOptions, step: Callable[..., Any] = train_step) -> Plan:
    return autoshard(step, mesh, *shapes(), donate_argnums=0, option=option)


def steps(plan: Plan, mesh: jax.sharding.Mesh | None = None) -> dict[str, np.ndarray]:
    """Two training steps by a plan on global arrays: the loss of each, and the parameters at last, whole."""
    step = plan.jit(train_step, mesh).compile(*shapes())
    params, x = jax.tree.map(global_array, start(), step.input_shardings[0])
    losses = []
    for _ in range(NUM_STEPS):
        params, loss = step(params, x)
        assert {each.sharding.mesh for each in jax.tree.leaves(params)} == {step.mesh}
        losses.append(whole(loss))
    return {"loss": np.array(losses)} | {name: whole(value) for name, value in params.items()}


def global_array(value: np.ndarray, sharding: Any) -> jax.Array:
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def whole(array: jax.Array) -> np.ndarray:
    """An array of all processes."""
    everywhere = jax.sharding.NamedSharding(array.sharding.mesh, jax.sharding.PartitionSpec())
    return np.asarray(jax.device_put(array, everywhere).addressable_data(0))


def plans(folder: Path, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Plan by each kind of costs, and run by them."""
    measured = planned(mesh, options(folder))
    # The plan of the first process counts, and others need not have it.
    is_first = jax.process_index() == min(device.process_index for device in mesh.devices.flat)
    found = {
        "estimate": planned(mesh, options(folder, costs="estimate")),
        "measure": measured,
        "replay": planned(mesh, options(folder, costs="replay")),
        "given": planned(mesh, options(folder, plan=measured if is_first else None)),
    }
    mine = folder / f"plan-{jax.process_index()}.json"
    measured.save(mine)
    values = {"planned": steps(measured), "loaded": steps(Plan.load(mine), mesh), "estimated": steps(found["estimate"])}
    named = {f"{name}-{key}": value for name, of in values.items() for key, value in of.items()}
    np.savez(folder / f"{jax.process_index()}.npz", **named)
    return {name: plan.to_json() for name, plan in found.items()} | {"databases": databases(folder)}


def databases(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.sqlite"))


def estimates(folder: Path, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Plan by estimates for as little memory as there is a plan for, so that the parameters are split, and run."""
    try:
        planned(mesh, options(folder, costs="estimate", memory_budget_bytes=1))
        raise AssertionError("a byte is enough")
    except MemoryBudgetError as error:
        least = error.least_bytes
    plan = planned(mesh, options(folder, costs="estimate", memory_budget_bytes=least))
    np.savez(folder / f"{jax.process_index()}.npz", **steps(plan))
    return {"estimate": plan.to_json()}


def in_processes(folder: Path, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Plan by what the processes measure themselves, as on devices whose memory belongs to them."""
    measuring.is_isolated = lambda *_: False
    return across(folder, mesh)


def across(folder: Path, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Plan for a mesh of two axes of which the first one goes over the devices of each process, and run."""
    devices = mesh.devices.reshape(jax.process_count(), -1).T
    plan = planned(jax.sharding.Mesh(devices, ("data", "model")), options(folder))
    np.savez(folder / f"{jax.process_index()}.npz", **steps(plan))
    return {"measure": plan.to_json()}


def own_values(folder: Path, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Call a planned function with values that are of each process alone."""
    plan = planned(mesh, options(folder, costs="estimate"))
    step = plan.jit(train_step)
    params, x = start()
    on_device = jax.tree.map(jnp.asarray, (params, x))
    _, loss = step(*on_device)
    return {"loss": float(whole(loss)), "says": said_by(lambda: step(params, x))}


def worker_killed(folder: Path, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Plan while a worker is killed once."""
    if jax.process_index() == 1:
        before_first_timing(lambda host: host._supervisor.kill())
    return {"measure": planned(mesh, options(folder)).to_json()}


def dies(folder: Path, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Plan while a process is killed."""
    if jax.process_index() == 1:
        before_first_timing(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    return {"says": said_by(lambda: planned(mesh, options(folder)))}


def other_function(folder: Path, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Plan another function in one process."""

    def halved(params: Params, x: jax.Array) -> tuple[Params, jax.Array]:
        return train_step(params, x / 2)

    step = halved if jax.process_index() == 1 else train_step
    return {"says": said_by(lambda: planned(mesh, options(folder), step))}


def raises(folder: Path, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Plan a function that fails in one process."""

    def failing(params: Params, x: jax.Array) -> tuple[Params, jax.Array]:
        if jax.process_index() == 1:
            raise ZeroDivisionError("the function's own error")
        return train_step(params, x)

    return {"says": said_by(lambda: planned(mesh, options(folder), failing))}


def no_memory(folder: Path, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Plan for devices without memory."""
    option = options(folder, costs="estimate", memory_budget_bytes=1)
    return {"says": said_by(lambda: planned(mesh, option))}


def mistakes(folder: Path, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Plan what cannot be planned, several times, and at last what can."""
    found = {of.__name__: of(folder, mesh) for of in (other_function, raises, no_memory)}
    return found | {"own_values": own_values(folder, mesh)}


def stays_away(folder: Path, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Plan in one process only."""
    joining.JOIN_LIMIT_S = 2.0
    return {"says": said_by(lambda: planned(mesh, options(folder))) if jax.process_index() == 0 else ""}


def before_first_timing(act: Callable[[Any], None]) -> None:
    do = WorkerHost.do

    def acting(self: WorkerHost, task: Any) -> Iterator[Any]:
        if isinstance(task, MeasureTask):
            WorkerHost.do = do
            act(self)
        return do(self, task)

    WorkerHost.do = acting


def said_by(call: Callable[[], Any]) -> str:
    """The class and the text of the error that a call raises."""
    try:
        call()
    except (CFPError, SearchError, ArithmeticError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def main() -> None:
    rank, count, port, folder, what = sys.argv[1:]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", int(count), int(rank))
    mesh = jax.make_mesh((jax.device_count(),), ("devices",))
    found = globals()[what](Path(folder), mesh)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    sys.stdout.flush()
    if what == "dies":  # JAX would wait for the one that is dead
        os._exit(0)


if __name__ == "__main__":
    main()
