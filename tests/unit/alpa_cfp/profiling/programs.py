"""Partitioned programs on 8 devices, one that is sound and one for each way to fail; and how they are measured."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from alpa_cfp.database import Profile, ProfileDatabase
from alpa_cfp.profiling import MeasureOptions, Profiler
from alpa_cfp.profiling.process.supervisor import Supervisor
from alpa_cfp.profiling.runners import SubprocessRunner
from alpa_cfp.spmd.compile.executable import Client
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition, partition_to_run
from alpa_cfp.spmd.partition.local_ops import HANDLERS
from alpa_cfp.spmd.propagation import propagate
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from unit.alpa_cfp.spmd.helpers import MESH_2X4, split
from unit.alpa_cfp.spmd.partition.solved_programs import solve

X = np.ones((16, 16), np.float32)
WHOLE, ROWS, COLUMNS = split(MESH_2X4, "", ""), split(MESH_2X4, "y", ""), split(MESH_2X4, "", "y")


def measure(
    modules: Sequence[HloModule], client: Client, database: ProfileDatabase, options: MeasureOptions
) -> list[Profile]:
    """The profiles of modules, from a profiler of their own."""
    with Profiler(client, database, options) as profiler:
        return profiler.measure(modules)


def worker_pid(supervisor: Supervisor) -> int | None:
    """The id of a supervisor's worker process, while there is one."""
    return None if supervisor._process is None else supervisor._process.pid


def worker_pid_of(profiler: Profiler) -> int | None:
    """The id of a profiler's worker process, while there is one."""
    assert isinstance(profiler._measurer, SubprocessRunner)
    return worker_pid(profiler._measurer.supervisor)


def product(left: Any = WHOLE, right: Any = WHOLE, result: Any = WHOLE, *, name: str = "product") -> HloModule:
    """A product of matrices with the given shardings."""
    module = solve(lambda x, w: x @ w, (X, X), [left, right], [result], [result])
    module = dataclasses.replace(module, name=name)
    module.partitioned = partition(module)
    return module


def sum_of_spectrum() -> HloModule:
    """A sum over devices in a program that XLA partitions, as if the Fourier transform were not covered."""
    lowered = jax.jit(lambda x: jnp.abs(jnp.fft.fft(x)).sum()).trace(X).lower()
    module = HloModule.from_stablehlo("spectrum", str(lowered.compiler_ir("stablehlo")))
    propagate(module, ROWS.mesh, to_outputs=True, inputs=[ROWS])
    module.solved = True
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(HANDLERS, "stablehlo.fft")
        module.partitioned = partition_to_run(module)
    return module


def scaled(factor: float, dtype: Any = np.float32, mesh: tuple[int, ...] = (2, 4)) -> HloModule:
    """A sound program that differs from those of other factors."""
    return _replicated("scaled", lambda x: x * factor, dtype, mesh)


def hanging() -> HloModule:
    """A program that never ends."""
    return _replicated("hanging", lambda x: lax.while_loop(lambda c: c[0, 0] > -1, lambda c: c * 0.5 + 1, x))


def oversized() -> HloModule:
    """A program whose result takes more bytes than an address has bits for."""
    return _replicated("oversized", lambda x: jnp.broadcast_to(x[0, 0], (1 << 23, 1 << 23)))


def crashing() -> HloModule:
    """A program that calls a Python function of another process, at which XLA reads memory that it does not have."""
    return _calling(
        "crashing", "@xla_ffi_python_cpu_callback", "{api_version = 4 : i32, backend_config = {index = 7 : ui64}}"
    )


def linear_algebra() -> list[HloModule]:
    """Programs whose ops are calls of LAPACK on CPUs."""
    functions: dict[str, Callable[[jax.Array], jax.Array]] = {
        "qr_in_a_loop": lambda x: lax.fori_loop(0, 2, lambda _, y: jnp.linalg.qr(y)[0], x),
        "cholesky": jnp.linalg.cholesky,
        "eigh": lambda x: jnp.linalg.eigh(x)[1],
        "eig": lambda x: jnp.linalg.eig(x)[1].real,
        "solve": lambda x: jnp.linalg.solve(x, x),
        "svd": lambda x: jnp.linalg.svd(x)[0],
    }
    return [_replicated(name, function) for name, function in functions.items()]


def uncompilable() -> HloModule:
    """A program that calls what XLA does not have."""
    return _calling("uncompilable", "@nobody_has_this", "")


def _replicated(
    name: str, function: Callable[[jax.Array], jax.Array], dtype: Any = np.float32, shape: tuple[int, ...] = (2, 4)
) -> HloModule:
    mesh = LogicalMesh(shape)
    lowered = jax.jit(function).trace(jax.ShapeDtypeStruct(X.shape, dtype)).lower()
    module = HloModule.from_stablehlo(name, str(lowered.compiler_ir("stablehlo")))
    propagate(module, mesh, to_outputs=True, inputs=[ArraySharding.replicated(mesh, 2)])
    module.solved = True
    module.partitioned = partition_to_run(module)
    return module


def _calling(name: str, target: str, attributes: str) -> HloModule:
    module = _replicated(name, lambda x: x * 2)
    assert module.partitioned is not None
    array = "tensor<16x16xf32>"
    text = f"""func.func @main(%x: {array}) -> {array} {{
        %y = stablehlo.custom_call {target}(%x) {attributes} : ({array}) -> {array}
        return %y : {array}
    }}"""
    with mlir.context():
        bytecode = mlir.to_bytecode(mlir.parse(text))
    module.partitioned = dataclasses.replace(module.partitioned, bytecode=bytecode)
    return module
