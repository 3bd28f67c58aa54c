"""Step barriers: what is on their two sides is compiled apart on CPUs, and nothing else changes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_cfp.spmd.compile import backend
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.step_barriers import STEP, keep_apart, may_have_barriers, step_barrier
from alpa_cfp.spmd.module.hlo_module import HloModule

X = jnp.sin(jnp.arange(64.0)).reshape(8, 8)


def bytecode_of(fn: Callable[..., Any], *args: Any, donated: tuple[int, ...] = ()) -> bytes:
    text = jax.jit(fn, donate_argnums=donated).trace(*args).lower().as_text()
    return HloModule.from_stablehlo("fn", text).bytecode


def kept(fn: Callable[..., Any], *args: Any) -> str:
    """The text of a function's module after `keep_apart`."""

    def change(module: Any) -> str:
        keep_apart(module)
        assert module.operation.verify()
        return mlir.to_text(module)

    return mlir.edit(bytecode_of(fn, *args), change)[1]


def test_a_step_barrier_is_an_optimization_barrier_with_a_mark_that_bytecode_keeps() -> None:
    bytecode = bytecode_of(lambda x: jnp.sin(step_barrier(jnp.cos(x))), X)
    text = mlir.edit(bytecode, mlir.to_text)[1]
    (line,) = [line for line in text.splitlines() if "optimization_barrier" in line]
    assert STEP in line
    assert may_have_barriers(bytecode)
    assert not may_have_barriers(bytecode_of(lax.optimization_barrier, X))


def test_a_step_barrier_becomes_a_call_that_is_not_inlined() -> None:
    text = kept(lambda x: jnp.sin(step_barrier(jnp.cos(x))) + step_barrier(x), X)
    assert "optimization_barrier" not in text
    assert text.count("call @") == text.count('inlineable = "false"') == 2
    assert text.count("func.func private") == 1  # one identity for both, being of one type


def test_other_barriers_and_values_that_are_constant_get_no_call() -> None:
    text = kept(lambda x: lax.optimization_barrier(x) + step_barrier(jnp.zeros((8, 8))), X)
    assert "call @" not in text
    assert text.count("optimization_barrier") == 1


def test_a_step_barrier_that_nothing_uses_costs_nothing() -> None:
    def fn(x: jax.Array) -> jax.Array:
        step_barrier(jnp.sin(x))
        return x + 1

    executable = backend.compile_and_load(bytecode_of(fn, X), (jax.devices()[0],), one_program_per_device=True)
    assert "sine" not in backend.optimized_text(executable)


def test_what_is_behind_a_step_barrier_is_not_computed_again_by_its_users() -> None:
    def fn(x: jax.Array) -> jax.Array:
        for _ in range(6):
            x = step_barrier(jnp.sin(x) * jnp.roll(x, 1, 0))
        return x

    executable = backend.compile_and_load(bytecode_of(fn, X), (jax.devices()[0],), one_program_per_device=True)
    text = backend.optimized_text(executable)
    assert text.count(" call(") == 6
    assert text.count(" sine(") == 6


@pytest.mark.parametrize("donated", [(), (0,)])
def test_a_program_with_step_barriers_gives_the_same_also_in_donated_buffers(donated: tuple[int, ...]) -> None:
    def fn(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = step_barrier(x)
        y = step_barrier(y + x)
        return step_barrier(x * 2 + y), y

    bytecode = bytecode_of(fn, X, X, donated=donated)
    executable = backend.compile_and_load(bytecode, (jax.devices()[0],), one_program_per_device=True)
    assert backend.memory_bytes(executable)["aliased"] == len(donated) * X.nbytes
    handlers = [backend.array_handler(X.shape, np.dtype(np.float32), X.sharding)] * 2
    for got, wanted in zip(backend.execute(executable, [jnp.copy(X), X], handlers), fn(X, X), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_shardings_pass_through_the_calls_where_xla_partitions() -> None:
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    shardings = tuple(NamedSharding(mesh, spec) for spec in (PartitionSpec("x"), PartitionSpec(None, "x")))

    def fn(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.sin(step_barrier(jnp.cos(x))), jnp.sin(step_barrier(jnp.cos(y)))

    lowered = jax.jit(fn, in_shardings=shardings, out_shardings=shardings).lower(X, X)
    bytecode = mlir.to_bytecode(lowered.compiler_ir("stablehlo"))
    executable = backend.compile_and_load(bytecode, tuple(mesh.devices), one_program_per_device=False)
    text = backend.optimized_text(executable)
    assert text.count(" call(") == 2
    assert "f32[8,8]" not in text
    handlers = [backend.array_handler(X.shape, np.dtype(np.float32), sharding) for sharding in shardings]
    arguments = [jax.device_put(X, sharding) for sharding in shardings]
    for got in backend.execute(executable, arguments, handlers):
        np.testing.assert_allclose(got, np.sin(np.cos(X)), rtol=1e-6)
