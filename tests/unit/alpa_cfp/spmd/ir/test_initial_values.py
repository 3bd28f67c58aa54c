"""Reductions that begin with any value, over dims that devices split, begin with it once."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.partition import partition
from alpa_cfp.spmd.partition.xla import leave_to_xla
from unit.alpa_cfp.spmd.helpers import MESH_2X2, annotate_randomly, load, lower, place, values_of

pytestmark = pytest.mark.slow

X = -np.arange(1, 17).reshape(4, 4).astype(np.int32)
COMPUTATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lax.add,
    "maximum": lax.max,
    "minimum": lax.min,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
}


def _reduced(name: str, initial: int, dtype: Any) -> Callable[[Any], Any]:
    return lambda x: lax.reduce(x.astype(dtype), jnp.asarray(initial, dtype), COMPUTATIONS[name], (1,))


def _cases() -> list[tuple[str, int, str]]:
    numbers = [(name, 3, "int32") for name in COMPUTATIONS] + [(name, 3, "bfloat16") for name in ("add", "maximum")]
    return [*numbers, ("and", 0, "bool"), ("or", 1, "bool"), ("minimum", -99, "float32"), ("maximum", 7, "int8")]


@pytest.mark.parametrize("by_xla", [False, True])
@pytest.mark.parametrize(("name", "initial", "dtype"), _cases())
def test_a_reduction_begins_once_with_its_initial_value(name: str, initial: int, dtype: str, by_xla: bool) -> None:
    function = _reduced(name, initial, dtype)
    expected = values_of(function, [X])
    for seed in range(6):
        module = annotate_randomly(lower(function, [X]), MESH_2X2, seed)
        module.solved = True
        executable = load(module, leave_to_xla(module, "it is to") if by_xla else partition(module))
        (found,) = executable.execute_sharded_on_local_devices(place(executable, [X]))
        np.testing.assert_array_equal(np.asarray(found).astype(float), expected[0].astype(float))


@pytest.mark.parametrize(
    ("name", "dtype"), [("add", "float32"), ("maximum", "float32"), ("or", "bool"), ("and", "int32")]
)
def test_one_that_begins_with_its_identity_is_let_be(name: str, dtype: str) -> None:
    identity = {"add": 0, "maximum": -np.inf, "or": False, "and": -1}[name]
    module = lower(lambda x: lax.reduce(x.astype(dtype), jnp.asarray(identity, dtype), COMPUTATIONS[name], (1,)), [X])
    with mlir.context():
        parsed = mlir.parse(module.bytecode)
        block = mlir.entry_block(mlir.main_function(parsed))
        names = [op.name for op in mlir.block_operations(block)]
    assert names.count(f"stablehlo.{name}") == 0
