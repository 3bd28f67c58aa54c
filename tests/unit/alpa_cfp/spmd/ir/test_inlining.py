"""Private functions become part of `main`."""

import jax
import jax.numpy as jnp
import numpy as np

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from unit.alpa_cfp.spmd.helpers import MESH_2X2, annotate, assert_partitioned_right, lower, values_of


def _assert_inlined_and_right(function, *arguments: np.ndarray) -> HloModule:
    module = lower(function, arguments)
    with mlir.context():
        parsed = mlir.parse(module.bytecode)
        assert list(mlir.functions(parsed)) == ["main"]
        assert not [op for op in mlir.walk(mlir.entry_block(mlir.main_function(parsed))) if op.name == "func.call"]
    annotate(module, MESH_2X2)
    assert_partitioned_right(module, arguments, values_of(function, arguments))
    return module


ROWS = np.arange(16, dtype=np.float32).reshape(4, 4)


def test_a_function_that_is_called_twice_is_computed_twice():
    inner = jax.jit(lambda x: jnp.cumsum(x) * 2)
    _assert_inlined_and_right(lambda x: inner(x[0]) - inner(x[1]), ROWS)


def test_a_function_that_calls_a_function_is_inlined_to_the_end():
    inner = jax.jit(lambda x, y: jnp.where(x > y, x, y))
    outer = jax.jit(lambda x: inner(x, inner(x * 2, x + 3)))
    _assert_inlined_and_right(lambda x: outer(outer(x)), ROWS)


def test_a_call_inside_a_loop_is_inlined():
    inner = jax.jit(lambda x: jnp.clip(x, -1, 9) + 1)
    _assert_inlined_and_right(lambda x: jax.lax.fori_loop(0, 3, lambda i, c: inner(c), x), ROWS)


def test_a_function_that_gives_back_its_argument_is_inlined():
    inner = jax.jit(lambda x, y: (y, x, x + y))
    _assert_inlined_and_right(lambda x: inner(x, x * 2), ROWS)


def test_main_keeps_its_parameters_and_results():
    module = _assert_inlined_and_right(lambda x, unused: (x, jax.jit(jnp.cumsum)(x), x), ROWS, ROWS)
    assert [shape.dims for shape in module.shape.parameters] == [(4, 4), (4, 4)]
    assert [shape.dims for shape in module.shape.results] == [(4, 4), (16,), (4, 4)]
