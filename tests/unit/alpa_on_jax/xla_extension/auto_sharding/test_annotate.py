"""A solved program has a sharding on every op, moves what must be moved once, and computes what one device computes."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_on_jax.xla_extension.auto_sharding.ilp import shard_with_ilp
from unit.alpa_cfp.spmd.helpers import assert_parts_equal, lower, run, values_of
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import MESH_SHAPES, options

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(1)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32) / 2


X, W, V = normal(8, 4), normal(4, 8), normal(8, 4)

CONSTRAINT = "sdy.sharding_constraint"


def _sharded(
    function: Callable[..., Any], arguments: Sequence[Any], mesh_shape: tuple[int, int], **changes: Any
) -> HloModule:
    module = lower(function, arguments)
    shard_with_ilp(module, options(mesh_shape, **changes))
    return module


def _look(module: HloModule, look: Callable[[list[Any]], Any]) -> Any:
    """What `look` finds in the operations of the annotated program."""

    def at(parsed: Any) -> Any:
        parsed.operation.verify()
        return look(mlir.block_operations(mlir.entry_block(mlir.main_function(parsed))))

    return mlir.edit(module.bytecode, at)[1]


def _mlp(x: Any, w: Any, v: Any) -> Any:
    return jax.nn.relu(x @ w) @ v


def _gradients(w: Any, v: Any, x: Any) -> Any:
    return jax.grad(lambda w, v: jnp.mean((jnp.tanh(x @ w) @ v - x) ** 2), argnums=(0, 1))(w, v)


def _heads(x: Any, w: Any) -> Any:
    return (x @ w).reshape(8, 2, 4).transpose(1, 0, 2).sum(1)


def _staged(x: Any, w: Any) -> Any:
    x, w = jax.lax.optimization_barrier((x, w))
    return jnp.tanh(x @ w)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "two layers": (_mlp, (X, W, V)),
    "gradients": (_gradients, (W, V, X)),
    "heads": (_heads, (X, W)),
    "barriers": (_staged, (X, W)),
    "attention": (lambda q, k: jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k)), (normal(4, 4, 8), normal(4, 4, 8))),
    "a sum of dots": (lambda x, w, y, v: x @ w + y @ v, (X, W, X, W)),
    "an embedding": (lambda x, i: x[i].sum(0), (X, np.array([3, 0, 7, 3], np.int32))),
    "a masked sum": (lambda x: jnp.where(jnp.tril(jnp.ones((8, 8), bool)), x @ x.T, 0).sum(), (X,)),
    "counting": (lambda x: x + jnp.arange(4) + jnp.arange(8)[:, None], (X,)),
    "slices": (lambda x: jnp.concatenate((x[:, 2:], x[:, :2] * 3), 1), (X,)),
    "a sort": (lambda x: jnp.sort(x, axis=0), (X,)),
    "sorts along both dims": (
        lambda x: (jnp.sort(x, axis=0) + jnp.sort(x, axis=1), jnp.cumsum(jnp.sort(x, axis=0), axis=1)),
        (normal(8, 8),),
    ),
    "a scan of sums": (lambda x: jnp.cumsum(x, axis=0), (X,)),
    "a parameter returned": (lambda x, w: (x, (x @ w).T), (X, W)),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mixed": {"allow_mixed_mesh_shape": True},
    "split parameters": {"allow_replicated_parameters": False},
}


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_devices_compute_what_one_device_computes(mesh_shape, variant, name):
    function, arguments = PROGRAMS[name]
    module = _sharded(function, arguments, mesh_shape, **VARIANTS[variant])
    assert_parts_equal(run(module, partition(module), arguments), values_of(function, arguments), tolerance=1e-4)


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_op_that_is_needed_and_gives_more_than_a_scalar_has_a_sharding(mesh_shape, name):
    module = _sharded(*PROGRAMS[name], mesh_shape)

    def without(ops: list[Any]) -> list[str]:
        needed = set(ops[-1:])
        for op in reversed(ops):
            if op in needed:
                needed |= {source for operand in op.operands if (source := mlir.defining_op(operand)) is not None}
        bare = [op for op in ops if not any(name in op.attributes for name in (annotations.SHARDING, "sharding"))]
        return [str(op) for op in bare if op in needed and op.results and mlir.tensor_shape(op.results[0])]

    assert not _look(module, without)


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_value_is_moved_once_to_each_place_and_never_to_where_it_is(mesh_shape, name):
    module = _sharded(*PROGRAMS[name], mesh_shape)
    mesh = LogicalMesh(mesh_shape)

    def moves(ops: list[Any]) -> list[tuple[int, str, bool]]:
        numbers = {op: i for i, op in enumerate(ops)}
        found = []
        for op in ops:
            if op.name == CONSTRAINT:
                source = mlir.defining_op(op.operands[0])
                target = annotations.result_shardings(op, mesh)[0]
                if source is None:
                    argument = ir.BlockArgument(op.operands[0]).arg_number
                    found.append((-1 - argument, target.to_sdy(), module.input_shardings[argument] == target))
                else:
                    before = annotations.result_shardings(source, mesh)[0]
                    found.append((numbers[source], target.to_sdy(), before == target))
        return found

    found = _look(module, moves)
    assert len(set(found)) == len(found)
    assert not any(idle for _, _, idle in found)


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_an_op_returns_lies_as_the_module_says(mesh_shape, name):
    module = _sharded(*PROGRAMS[name], mesh_shape)
    mesh = LogicalMesh(mesh_shape)

    def returned(ops: list[Any]) -> list[str]:
        lying = []
        for operand in ops[-1].operands:
            source = mlir.defining_op(operand)
            if source is None:
                lying.append(module.input_shardings[ir.BlockArgument(operand).arg_number].to_sdy())
            else:
                number = list(source.results).index(operand)
                lying.append(annotations.result_shardings(source, mesh)[number].to_sdy())
        return lying

    assert _look(module, returned) == [sharding.to_sdy() for sharding in module.output_shardings or ()]


def test_what_lies_as_it_is_needed_is_not_moved():
    module = _sharded(lambda x: jnp.tanh(x) * x, (X,), (4, 1))
    assert _look(module, lambda ops: [op.name for op in ops if op.name == CONSTRAINT]) == []


def test_a_solved_module_knows_its_mesh_and_that_it_is_solved():
    module = _sharded(_mlp, (X, W, V), (2, 2))
    assert module.solved
    assert module.mesh == LogicalMesh((2, 2))


def test_a_donated_argument_and_the_result_in_its_buffer_have_the_same_sharding():
    module = lower(lambda w, x: w - x.T @ x, (normal(4, 4), X), (True, False))
    shard_with_ilp(module, options((4, 1)))
    assert module.input_shardings[0] == module.output_shardings[0]


_OPS: dict[str, Callable[[Any, Any], Any]] = {
    "dot": jnp.matmul,
    "transposed dot": lambda x, y: x.T @ y,
    "add": jnp.add,
    "outer of sums": lambda x, y: x.sum(0)[None] * y.sum(1)[:, None],
    "mix dims": lambda x, y: (x + y).reshape(4, 2, 8).transpose(1, 0, 2).reshape(8, 8),
    "batched dot": lambda x, y: jnp.einsum("bij,bjk->bik", x.reshape(4, 4, 4), y.reshape(4, 4, 4)).reshape(8, 8),
    "columns": lambda x, y: jnp.concatenate((x[:, 4:], y[:, :4]), 1),
    "softmax": lambda x, y: jax.nn.softmax(x) * y,
}


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
@given(
    ops=st.lists(st.tuples(st.sampled_from(list(_OPS)), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4),
    mixed=st.booleans(),
)
@settings(max_examples=12)
def test_a_random_program_computes_on_the_mesh_what_it_computes_on_one_device(mesh_shape, ops, mixed):
    def program(*values: Any) -> Any:
        made = list(values)
        for name, i, j in ops:
            made.append(_OPS[name](made[i % len(made)], made[j % len(made)]))
        return made[-1], made[-1].mean()

    arguments = normal(8, 8), normal(8, 8)
    module = _sharded(program, arguments, mesh_shape, allow_mixed_mesh_shape=mixed)
    assert_parts_equal(run(module, partition(module), arguments), values_of(program, arguments), tolerance=1e-3)
