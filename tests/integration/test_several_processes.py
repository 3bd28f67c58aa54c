"""`autoshard` on a mesh of two JAX processes that Ray did not start; `docs/jax-programs.md` says the same."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_LIMIT_S = 240
_PROGRAM = """
import sys
import jax, jax.numpy as jnp, numpy as np
from alpa_cfp import PlanOptions, autoshard
from alpa_cfp.errors import NoDevicesError, PlanError

rank, port = int(sys.argv[1]), sys.argv[2]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
mesh = jax.make_mesh((4,), ("devices",))
assert len(jax.local_devices()) == 2

def train_step(weight, x):
    grad = jax.grad(lambda weight: jnp.mean((x @ weight - 1) ** 2))(weight)
    return weight - 0.1 * grad

def error_of(call):
    try:
        return call()
    except (NoDevicesError, PlanError) as error:
        return type(error)

shapes = jax.ShapeDtypeStruct((64, 128), jnp.float32), jax.ShapeDtypeStruct((256, 64), jnp.float32)
plan = autoshard(train_step, mesh, *shapes, option=PlanOptions(costs="estimate"))
assert error_of(lambda: autoshard(train_step, mesh, *shapes)) is NoDevicesError  # it would have to measure
assert error_of(lambda: plan.jit(train_step)) is PlanError  # the mesh has to be given

step = plan.jit(train_step, mesh).compile(*shapes)
shardings, _ = step.input_shardings
values = np.full((64, 128), 0.5, np.float32), np.arange(256 * 64, dtype=np.float32).reshape(256, 64) / 16384
placed = [
    jax.make_array_from_callback(each.shape, sharding, lambda index, each=each: each[index])
    for each, sharding in zip(values, shardings)
]
expected = np.asarray(jax.jit(train_step)(*values))
for arguments in (placed, values):
    for shard in step(*arguments).addressable_shards:
        np.testing.assert_allclose(shard.data, expected[shard.index], rtol=1e-5)
open(sys.argv[3], "w").write(plan.to_json())
"""


def test_estimates_plan_for_two_processes_and_the_plan_gives_what_one_device_gives(tmp_path: Path) -> None:
    program, plans = tmp_path / "program.py", [tmp_path / f"{rank}.json" for rank in range(2)]
    program.write_text(_PROGRAM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    environment["ALPA_CFP_DATABASE"] = str(tmp_path / "profiles.sqlite")
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), str(port), str(plan)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank, plan in enumerate(plans)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=_LIMIT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    first, second = (plan.read_text() for plan in plans)
    assert first == second
