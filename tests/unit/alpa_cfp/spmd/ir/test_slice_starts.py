"""Slices whose starts depend on values, of dims that devices split, take what one device takes."""

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.partition import partition
from alpa_cfp.spmd.partition.xla import leave_to_xla
from unit.alpa_cfp.spmd.helpers import MESH_2X2, annotate_randomly, load, lower, place, values_of

pytestmark = pytest.mark.slow

X = np.arange(8, dtype=np.float32)
FUNCTIONS = {
    "slice": lambda x, start: lax.dynamic_slice_in_dim(x, start, 4, 0),
    "update": lambda x, start: lax.dynamic_update_slice_in_dim(x, -x[:4], start, 0),
}


@pytest.mark.parametrize("by_xla", [False, True])
@pytest.mark.parametrize("start", [0, 3, 7, -1, -9])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_slice_beyond_the_end_takes_the_last_one(name: str, start: int, by_xla: bool) -> None:
    arguments: list[Any] = [X, np.int32(start)]
    expected = values_of(FUNCTIONS[name], arguments)
    for seed in range(6):
        module = annotate_randomly(lower(FUNCTIONS[name], arguments), MESH_2X2, seed)
        module.solved = True
        executable = load(module, leave_to_xla(module, "it is to") if by_xla else partition(module))
        (found,) = executable.execute_sharded_on_local_devices(place(executable, arguments))
        np.testing.assert_array_equal(np.asarray(found), expected[0])


def test_constant_starts_are_let_be() -> None:
    module = lower(lambda x: lax.dynamic_slice_in_dim(x, 2, 4, 0), [X])
    with mlir.context():
        parsed = mlir.parse(module.bytecode)
        block = mlir.entry_block(mlir.main_function(parsed))
        assert "stablehlo.clamp" not in {op.name for op in mlir.walk(block)}


def test_starts_inside_of_loops_are_clamped_too() -> None:
    def function(x: Any, start: Any) -> Any:
        return lax.fori_loop(0, 3, lambda i, y: y + lax.dynamic_slice_in_dim(x, start + i, 4, 0), x[:4])

    arguments: list[Any] = [X, np.int32(3)]
    module = lower(function, arguments)
    with mlir.context():
        parsed = mlir.parse(module.bytecode)
        block = mlir.entry_block(mlir.main_function(parsed))
        assert "stablehlo.clamp" in {op.name for op in mlir.walk(block)}
    assert jax.jit(function)(*arguments).shape == (4,)
