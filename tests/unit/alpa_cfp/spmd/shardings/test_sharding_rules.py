"""Elementwise ops that Shardy has no rule for: they keep their names and are computed right, of partial sums, too.

An op that stood under the name of another one was once merged with the sums over devices before it: each op here gets
one to three operands that are partial sums, on each mesh, with and without the passes of a module that a planner has
solved, and with sums that are left to the caller.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.op_kinds import RULELESS_ELEMENTWISE
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition.local_ops import HANDLERS
from alpa_cfp.spmd.partition.shardy import partition_with_shardy
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.spmd.shardings.sharding_rules import run_shardy_passes
from unit.alpa_cfp.spmd.helpers import (
    MESH_2X4,
    Case,
    annotate,
    assert_partitioned_right,
    assert_parts_equal,
    lower,
    mesh_id,
    run,
    split,
    values_of,
)

pytestmark = pytest.mark.slow

VALUE = np.linspace(0.1, 0.9, 32, dtype=np.float32).reshape(8, 4)
# Functions of values within (0.1, 0.9), by the op that each of them is; some are written out by JAX on one version.
ONE_OPERAND: dict[str, Callable[..., Any]] = {
    name: getattr(lax, name)
    for name in (
        *("acos", "asin", "asinh", "atan", "atanh", "bessel_i1e", "conj", "cosh", "digamma", "erf", "erf_inv", "erfc"),
        *("lgamma", "sinh", "square", "tan"),
    )
} | {"acosh": lambda x: lax.acosh(x + 1), "is_inf": jnp.isinf}
TWO_OPERANDS: dict[str, Callable[..., Any]] = {
    "next_after": lax.nextafter,
    "zeta": lax.zeta,
    "polygamma": lambda m, x: lax.polygamma(lax.round(m) + 1, x),
}
MESHES = tuple(LogicalMesh(shape) for shape in ((1, 4), (1, 8), (2, 2), (2, 4), (4, 2)))
# Products of them are within (0.1, 0.9); four times as much is within (1, 4), where zeta is finite.
_RNG = np.random.default_rng(0)
LEFT = _RNG.uniform(0.4, 0.9, (3, 4, 16)).astype(np.float32)
RIGHT = (_RNG.uniform(0.4, 0.9, (3, 16, 8)) / 16).astype(np.float32)


def _solved(module: HloModule) -> HloModule:
    """`module` as if a planner had decided its communication: all passes of the partitioner run."""
    module.solved = True
    return module


def _with_partial_sums(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """`function` of products whose contracted dim is split; with a third product, of its result added to that."""

    def program(left: jax.Array, right: jax.Array) -> jax.Array:
        products = [left[i] @ right[i] for i in range(3)]
        if count == 3:
            return function(*products[:2]) + products[2]
        return function(*products[:count])

    return program


def _ruleless(module: HloModule) -> list[str]:
    with mlir.context():
        parsed = mlir.parse(module.bytecode)
        names = [op.name for op in mlir.walk(mlir.entry_block(mlir.main_function(parsed)))]
        return [name for name in names if name in RULELESS_ELEMENTWISE]


def test_each_op_keeps_its_name_and_gets_the_sharding_of_its_operand():
    functions = [*ONE_OPERAND.values(), *(lambda x, f=f: f(x, x) for f in TWO_OPERANDS.values())]
    module = lower(lambda x: [function(x) for function in functions], (VALUE,))
    before = _ruleless(module)
    assert len(before) > 5
    annotate(module, MESH_2X4, [split(MESH_2X4, "y", "x")])
    assert _ruleless(module) == before
    assert module.output_shardings == (split(MESH_2X4, "y", "x"),) * len(functions)


def test_passes_that_keep_rules_keep_those_that_are_given():
    module = lower(lax.zeta, (VALUE, VALUE))
    with mlir.context():
        parsed = mlir.parse(module.bytecode)
        run_shardy_passes(parsed, "func.func(sdy-populate-op-sharding-rules)")
        assert "([i, j], [i, j])->([i, j]) {i=8, j=4}" in str(parsed)


@pytest.mark.parametrize("name", ONE_OPERAND)
def test_a_function_without_a_rule_is_computed_right_on_split_arrays(name: str):
    case = Case(lambda x: ONE_OPERAND[name](x), (VALUE,))
    module = annotate(case.module(), MESH_2X4, [split(MESH_2X4, "y", "x")])
    program = assert_partitioned_right(module, case.arguments, case.expected())
    assert program.collectives == ()


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
@pytest.mark.parametrize(
    ("name", "count"), [(name, 1) for name in ONE_OPERAND] + [(name, n) for name in TWO_OPERANDS for n in (2, 3)]
)
def test_a_function_of_partial_sums_is_computed_of_the_sums(name: str, count: int, mesh: LogicalMesh):
    program = _with_partial_sums((ONE_OPERAND | TWO_OPERANDS)[name], count)
    case = Case(program, (LEFT, RIGHT if name in ONE_OPERAND else 4 * RIGHT))
    summed = [split(mesh, "", "", "xy"), split(mesh, "", "xy", "")]
    module = _solved(annotate(case.module(), mesh, summed))
    found = assert_partitioned_right(module, case.arguments, case.expected())
    assert [each.kind for each in found.collectives] in (["all-reduce"] * n for n in range(1, count + 1))


@pytest.mark.parametrize("name", TWO_OPERANDS)
def test_the_sum_of_a_gradient_before_such_a_function_is_not_left_to_the_caller(name: str):
    def accumulate(old: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
        return old + TWO_OPERANDS[name](left[0] @ right[0], left[1] @ right[1])

    arguments = (np.zeros((4, 8), np.float32), LEFT, 4 * RIGHT)
    inputs = [split(MESH_2X4, "", ""), split(MESH_2X4, "", "", "xy"), split(MESH_2X4, "", "xy", "")]
    module = _solved(annotate(lower(accumulate, arguments), MESH_2X4, inputs))
    program = partition_with_shardy(module, (0,))
    assert program.unreduced_outputs == ((),)
    assert_parts_equal(run(module, program, arguments), values_of(accumulate, arguments))


def test_real_functions_run_where_the_program_is_left_to_xla(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(HANDLERS, "chlo.top_k")
    case = Case(lambda x: (lax.erf(x), lax.top_k(x, 2)[0]), (VALUE,), "top_k")
    module = annotate(case.module(), MESH_2X4, [split(MESH_2X4, "y", "")])
    assert assert_partitioned_right(module, case.arguments, case.expected(), refused=case.refused).partitioner == "xla"
