"""The training steps that are compared: takes a case, gives back functions that run one step and wait for it.

A case is a model in a size, a mesh and a sharding style. `alpa_program` runs it through `alpa.parallelize`, partitioned
as alpa_on_jax decides or by the partitioner that is named; `jit_program` through plain `jax.jit` with the same
shardings of inputs and outputs and the same donation. Invariant: all start from the same values, already on the mesh,
and each step's new state is the next step's argument.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_cfp.spmd.compile import executable as compiling
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import PartitionedProgram
from alpa_cfp.spmd.partition.shardy import partition_with_shardy
from alpa_cfp.spmd.partition.xla import leave_to_xla
from alpa_cfp_bench.programs import Program
from alpa_cfp_bench.workloads.meshes import logical_mesh
from alpa_cfp_bench.workloads.model import Model, training_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.shardings import batch_spec, manual_sharding, state_specs
from alpa_cfp_bench.workloads.sizes import MESH_AXES, SIZES, mesh_shape

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


@dataclass(frozen=True)
class Case:
    """One comparison: which model, on which mesh, how sharded."""

    model: str
    mesh: str
    style: str

    def __str__(self) -> str:
        return f"{self.model} {self.mesh} {self.style}"

    def build(self) -> Model:
        return build(self.model, SIZES[self.model])


class Placement:
    """Where the arrays of a case lie, for `jax.jit`.

    Attributes:
        state: A pytree like the model's state, of `NamedSharding`s.
        batch: The same for the batch.
        replicated: An array that every device holds whole.
    """

    def __init__(self, case: Case, model: Model):
        shape = mesh_shape(case.mesh)
        mesh = Mesh(np.array(jax.local_devices()[: prod(shape)]).reshape(shape), MESH_AXES)
        self.state = jax.tree.map(lambda spec: NamedSharding(mesh, spec), state_specs(model, case.style))
        self.batch = jax.tree.map(lambda _: NamedSharding(mesh, batch_spec(case.style)), model.batch)
        self.replicated = NamedSharding(mesh, PartitionSpec())


def alpa_program(case: Case, partitioner: str | None = None) -> Program:
    """The step through `alpa.parallelize`.

    Args:
        case: What to run.
        partitioner: "shardy" or "xla"; None: as alpa_on_jax decides.

    Raises:
        UnsupportedByShardyError: "shardy" is asked for and does not cover the program.
    """
    model = case.build()
    method = alpa.ShardParallel(
        devices=logical_mesh(case.mesh),
        auto_sharding_option=alpa.AutoShardingOption(enable_auto_sharding=False),
        manual_sharding_option=manual_sharding(model, case.style),
    )
    step: Any = alpa.parallelize(training_step(model, alpa.value_and_grad), donate_argnums=(0,), method=method)
    # A step donates its state, and the model's own is needed again.
    state = jax.tree.map(jnp.copy, model.state)
    with _partitioned_by(partitioner):
        executable = step.get_executable(state, model.batch)
    state, batch = step.preshard_dynamic_args(state, model.batch)
    return Program(step, state, batch, executable.get_hlo_text, executable.compiled.program.partitioner)


def jit_program(case: Case) -> Program:
    """The step through `jax.jit`."""
    model = case.build()
    placement = Placement(case, model)
    step = jax.jit(
        training_step(model, jax.value_and_grad),
        in_shardings=(placement.state, placement.batch),
        out_shardings=(placement.state, placement.replicated),
        donate_argnums=(0,),
    )
    # device_put may hand on the model's own buffers, which donation would take.
    state = jax.device_put(jax.tree.map(jnp.copy, model.state), placement.state)
    batch = jax.device_put(model.batch, placement.batch)
    lowered = step.lower(state, batch)  # before the state is donated
    return Program(step, state, batch, lambda: lowered.compile().as_text() or "", "xla")


def collectives(text: str) -> dict[str, dict[str, int]]:
    """The communication in optimised HLO by kind: how many ops, and the bytes of one device's results.

    A start and its done count once. Ops in a loop's body count once.
    """
    found: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        match = re.search(rf"= (.*?) ({'|'.join(COLLECTIVES)})(-start)?\(", line)
        if match:
            entry = found.setdefault(match[2], {"count": 0, "bytes": 0})
            entry["count"] += 1
            entry["bytes"] += sum(_array_bytes(*array) for array in re.findall(r"(\w+)\[([\d,]*)\]", match[1]))
    return found


def collective_bytes(text: str) -> int:
    """The bytes of all communication in optimised HLO, as `collectives` counts them."""
    return sum(entry["bytes"] for entry in collectives(text).values())


def _array_bytes(element_type: str, dims: str) -> int:
    bits = re.search(r"\d+", element_type)
    width = max(int(bits[0]) // 8, 1) if bits else 1
    return width * prod(int(size) for size in dims.split(",") if size)


@contextlib.contextmanager
def _partitioned_by(partitioner: str | None) -> Iterator[None]:
    """Within the context, what alpa compiles is partitioned by `partitioner`."""
    if partitioner is None:
        yield
        return

    def forced(module: HloModule, accumulators: Any = ()) -> PartitionedProgram:
        if partitioner == "shardy":
            return partition_with_shardy(module, accumulators)
        return leave_to_xla(module, "the benchmark asks for it")

    original = compiling.partition_to_run
    compiling.partition_to_run = forced
    try:
        yield
    finally:
        compiling.partition_to_run = original
