"""Elementwise ops that Shardy has no rule for: others stand in for them and give way again."""

import jax
import numpy as np
import pytest
from jax import lax

from alpa_on_jax.xla_extension import mlir, ruleless_ops
from unit.alpa_on_jax.xla_extension.helpers import MESH_2X4, Case, annotate, assert_partitioned_right, lower, split

VALUE = np.linspace(0.1, 0.9, 32, dtype=np.float32).reshape(8, 4)
_INVERSE = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "erf_inv")
_OTHERS = ("bessel_i1e", "cosh", "digamma", "erf", "erfc", "lgamma", "sinh", "square", "tan")
FUNCTIONS = {name: getattr(lax, name) for name in (*_INVERSE, *_OTHERS)}


def _everything(x: jax.Array) -> list[jax.Array]:
    return [function(x) for function in FUNCTIONS.values()] + [lax.nextafter(x, -x), lax.zeta(x + 2, x + 1)]


def test_what_is_hidden_and_restored_is_the_same_module():
    module = lower(_everything, (VALUE,))
    with mlir.context():
        parsed = mlir.parse(module.bytecode)
        before = str(parsed)
        assert ruleless_ops.hide(parsed) > 5
        names = {op.name for op in mlir.walk(mlir.entry_block(mlir.main_function(parsed)))}
        assert not [name for name in names if name.startswith("chlo.")]
        ruleless_ops.restore(parsed)
        assert str(parsed) == before


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_without_a_rule_is_computed_right_on_split_arrays(name):
    value = VALUE + 1 if name == "acosh" else VALUE
    case = Case(lambda x: FUNCTIONS[name](x) + 1, (value,))
    module = annotate(case.module(), MESH_2X4, [split(MESH_2X4, "y", "x")])
    program = assert_partitioned_right(module, case.arguments, case.expected())
    assert program.collectives == ()


def test_real_functions_run_where_the_program_is_left_to_xla():
    case = Case(lambda x: (lax.erf(x), lax.top_k(x, 2)[0]), (VALUE,), "top_k")
    module = annotate(case.module(), MESH_2X4, [split(MESH_2X4, "y", "")])
    assert assert_partitioned_right(module, case.arguments, case.expected(), refused=case.refused).partitioner == "xla"
