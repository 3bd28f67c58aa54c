"""Rules that compute with constants: an op of constants is one, and two scalings of a value are one.

Each rule takes one op and gives what stands in for it, or None. The numbers are computed in the element type, as the
compiler does it; (x * a) * b becomes x * (a * b), which may differ in the last bit, as in XLA's AlgebraicSimplifier.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.element_types import numpy_dtype
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.simplify.constants import number
from alpa_cfp.spmd.simplify.rewriting import broadcast, made_by

# Correctly rounded everywhere, so that computing them here changes nothing.
_FOLDED: dict[str, Callable[..., Any]] = {
    "stablehlo.add": np.add,
    "stablehlo.divide": np.divide,
    "stablehlo.multiply": np.multiply,
    "stablehlo.sqrt": np.sqrt,
    "stablehlo.subtract": np.subtract,
}


def fold_constants(op: Operation) -> Value | None:
    """An op of constants that hold one real number each."""
    compute, dtype = _FOLDED[op.name], _float_dtype(op.results[0])
    numbers = [number(operand) for operand in op.operands]
    if dtype is None or any(value is None for value in numbers):
        return None
    with np.errstate(all="ignore"):
        folded = compute(*(np.asarray(value, dtype) for value in numbers))
    return _filled_with(float(folded), op.results[0])


def merge_scalings(op: Operation) -> Value | None:
    """(x * a) * b, where a and b are constants."""
    for inner_value, outer in (tuple(op.operands), tuple(op.operands)[::-1]):
        inner = made_by(inner_value, "multiply")
        if inner is None or number(outer) is None:
            continue
        for x, scale in (tuple(inner.operands), tuple(inner.operands)[::-1]):
            dtype, a, b = _float_dtype(x), number(scale), number(outer)
            if dtype is not None and a is not None and b is not None and number(x) is None:
                with np.errstate(all="ignore"):
                    product = float(np.multiply(np.asarray(a, dtype), np.asarray(b, dtype)))
                return mlir.create(op.name, [op.results[0].type], [x, _filled_with(product, x)]).results[0]
    return None


def _float_dtype(value: Value) -> np.dtype | None:
    element = mlir.tensor_type(value).element_type
    return np.dtype(numpy_dtype(element)) if isinstance(element, ir.FloatType) else None


def _filled_with(value: float, like: Value) -> Value:
    """A value of the type of `like` in which each element is `value`."""
    tensor = mlir.tensor_type(like)
    scalar = ir.RankedTensorType.get([], tensor.element_type)
    splat = ir.DenseElementsAttr.get_splat(scalar, ir.FloatAttr.get(tensor.element_type, value))
    constant = mlir.create("stablehlo.constant", [scalar], [], {"value": splat}).results[0]
    return broadcast(constant, list(tensor.shape), []) if tensor.rank else constant
