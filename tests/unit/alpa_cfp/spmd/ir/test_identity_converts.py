"""Conversions to the same type, which JAX writes for weak dtypes, are no part of a program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.lowered_form import remove_identity_converts


def converts(rate: object, dtype: str) -> int:
    """The conversions that are left in a program that multiplies an array by `rate`."""
    lowered = jax.jit(lambda x, rate: jnp.where(x > 0, x * rate, x)).lower(jnp.ones(4, dtype), rate)
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        remove_identity_converts(module)
        module.operation.verify()
        return sum(op.name == "stablehlo.convert" for op in mlir.all_operations(module))


@pytest.mark.parametrize("rate", [0.5, np.float32(0.5)])
def test_a_number_and_an_array_of_one_number_make_one_program(rate: object) -> None:
    assert converts(rate, "float32") == 0


def test_a_conversion_to_another_type_stays() -> None:
    assert converts(0.5, "bfloat16") == 1
