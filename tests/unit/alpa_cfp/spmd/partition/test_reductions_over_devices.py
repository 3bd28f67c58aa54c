"""Reductions of split dims: by a collective where there is one, and of gathered dims where there is none.

XLA's CPU backend has no collective for xor, for the bits of numbers and for a computation of one's own, and ends the
process for one of the latter in bfloat16. So neither partitioner may make partial results of these.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from alpa_cfp.spmd.partition.shardy import partition_with_shardy
from alpa_cfp.spmd.partition.xla import leave_to_xla
from unit.alpa_cfp.spmd.helpers import MESH_2X4, Case, annotate, assert_parts_equal, run, split

pytestmark = pytest.mark.slow

_RNG = np.random.default_rng(0)
DTYPES = ("bool", "int8", "uint8", "int32", "bfloat16", "float16", "float32", "complex64")
# Of a reducer the function, its neutral element among the values that are drawn (XLA reduces from no other), and the
# kinds of numbers that it takes (numpy's letters).
REDUCERS: dict[str, tuple[Callable[..., Any], float, str]] = {
    "sum": (lax.add, 0, "iufc"),
    "product": (lax.mul, 1, "iufc"),
    "maximum": (lax.max, 0, "biuf"),
    "minimum": (lax.min, 3, "biuf"),
    "and": (lax.bitwise_and, 3, "biu"),
    "or": (lax.bitwise_or, 0, "biu"),
    "xor": (lax.bitwise_xor, 0, "biu"),
    "logaddexp": (jnp.logaddexp, -np.inf, "f"),
    "sum of halves": (lambda a, b: (a + a) / 2 + b, 0, "fc"),
}
GATHERED = ("xor", "logaddexp", "sum of halves")


def _kind(dtype: str) -> str:
    return "f" if dtype == "bfloat16" else np.dtype(dtype).kind


CASES = [(name, dtype) for name, (*_, kinds) in REDUCERS.items() for dtype in DTYPES if _kind(dtype) in kinds]


def _values(dtype: str) -> np.ndarray:
    drawn = _RNG.integers(0, 3, (8, 16))
    return (drawn + _RNG.uniform(0.1, 0.9, (8, 16)) if _kind(dtype) in "fc" else drawn).astype(jnp.dtype(dtype))


def _case(name: str, dtype: str) -> Case:
    computation, initial, _ = REDUCERS[name]
    return Case(lambda x: lax.reduce(x, np.asarray(initial, x.dtype), computation, (0,)), (_values(dtype),))


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_reduction_of_a_split_dim_is_that_of_the_whole(name: str, dtype: str):
    case = _case(name, dtype)
    module = annotate(case.module(), MESH_2X4, [split(MESH_2X4, "xy", "")])
    program = partition_with_shardy(module, ())
    assert_parts_equal(run(module, program, case.arguments), case.expected())
    is_gathered = name in GATHERED or (name in ("and", "or") and dtype != "bool")
    assert [each.kind for each in program.collectives] == ["all-gather" if is_gathered else "all-reduce"]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_so_is_one_that_is_left_to_xla(name: str, dtype: str):
    case = _case(name, dtype)
    module = annotate(case.module(), MESH_2X4, [split(MESH_2X4, "xy", "")])
    assert_parts_equal(run(module, leave_to_xla(module, "the test asks for it"), case.arguments), case.expected())


def test_dims_that_are_kept_stay_split_beside_one_that_is_gathered():
    case = Case(lambda x: lax.reduce(x, np.float32(-np.inf), jnp.logaddexp, (1,)), (_values("float32"),))
    module = annotate(case.module(), MESH_2X4, [split(MESH_2X4, "x", "y")])
    program = partition_with_shardy(module, ())
    assert_parts_equal(run(module, program, case.arguments), case.expected())
    assert program.output_shardings == (split(MESH_2X4, "x"),)


def test_the_reduction_of_several_arrays_is_made_of_parts():
    def function(x: jax.Array) -> jax.Array:
        return jnp.argmax(x, axis=0)

    case = Case(function, (_values("float32"),))
    module = annotate(case.module(), MESH_2X4, [split(MESH_2X4, "xy", "")])
    program = partition_with_shardy(module, ())
    assert_parts_equal(run(module, program, case.arguments), case.expected())
