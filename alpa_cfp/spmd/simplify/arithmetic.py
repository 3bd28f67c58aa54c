"""Rules for elementwise ops: those that compute nothing, and those of constants.

Each rule takes one op and gives what stands in for it, or None. Invariant: the values stay the same bit for bit, except
that the sign of a zero may differ (x + 0 is taken for x), and that (x * a) * b becomes x * (a * b), which may differ in
the last bit; both as in XLA's AlgebraicSimplifier.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import broadcast, dtype_of
from alpa_cfp.spmd.ir.constants import filled, is_all, number
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import is_boolean
from alpa_cfp.spmd.simplify.rewriting import made_by

# The number that changes nothing as either operand; of "and" the one of booleans.
_NEUTRAL = {
    "stablehlo.add": 0,
    "stablehlo.and": 1,
    "stablehlo.maximum": -math.inf,
    "stablehlo.minimum": math.inf,
    "stablehlo.multiply": 1,
    "stablehlo.or": 0,
}
# The number that changes nothing as the second operand.
_NEUTRAL_SECOND = {"stablehlo.divide": 1, "stablehlo.subtract": 0}
# Correctly rounded everywhere, so that computing them here changes nothing.
_FOLDED: dict[str, Callable[..., Any]] = {
    "stablehlo.add": np.add,
    "stablehlo.divide": np.divide,
    "stablehlo.multiply": np.multiply,
    "stablehlo.sqrt": np.sqrt,
    "stablehlo.subtract": np.subtract,
}
# Float types by name -> the types that hold each of their values exactly.
_WIDER_FLOATS = {"bf16": ("f32", "f64"), "f16": ("f32", "f64"), "f32": ("f64",)}


def drop_neutral_operand(op: Operation) -> Value | None:
    """An op with an operand that changes nothing: x + 0, 1 * x, x - 0, x / 1, x and True, max(x, -inf)."""
    left, right = op.operands
    if op.name in _NEUTRAL_SECOND:
        return left if is_all(right, _NEUTRAL_SECOND[op.name]) else None
    if op.name == "stablehlo.and" and not is_boolean(left):
        return None
    if is_all(right, _NEUTRAL[op.name]):
        return left
    return right if is_all(left, _NEUTRAL[op.name]) else None


def undo_inverse(op: Operation) -> Value | None:
    """An op that is its own inverse, done twice: -(-x), not (not x)."""
    inner = made_by(op.operands[0], op.name.removeprefix("stablehlo."))
    return inner.operands[0] if inner is not None else None


def simplify_select(op: Operation) -> Value | None:
    """A choice that is made already, or between twice the same value."""
    predicate, on_true, on_false = op.operands
    if on_true == on_false:
        return on_true
    decided = number(predicate)
    if decided is None:
        return None
    return on_true if decided else on_false


def spread_scalars(op: Operation) -> Value | None:
    """A select or clamp with a scalar operand: it is broadcast, since in HLO all operands have one shape."""
    shape = mlir.tensor_shape(op.results[0])
    if not shape or all(mlir.tensor_shape(operand) for operand in op.operands):
        return None
    operands = [operand if mlir.tensor_shape(operand) else broadcast(operand, shape) for operand in op.operands]
    return mlir.create(op.name, [op.results[0].type], operands).results[0]


def simplify_convert(op: Operation) -> Value | None:
    """A conversion to the type that a value has; a conversion of one that only widened."""
    operand, result = op.operands[0], op.results[0]
    if operand.type == result.type:
        return operand
    inner = made_by(operand, "convert")
    if inner is None:
        return None
    source = inner.operands[0]
    if not _widens(mlir.tensor_type(source).element_type, mlir.tensor_type(operand).element_type):
        return None
    return source if source.type == result.type else stablehlo.convert(result.type, source)


def _widens(source: ir.Type, target: ir.Type) -> bool:
    """Whether a conversion from source to target keeps each value, so that another one after it sees no difference."""
    if isinstance(source, ir.IntegerType) and isinstance(target, ir.IntegerType):
        # An unsigned source has one bit to spare in a wider signed type; a bool is unsigned.
        unsigned = source.is_unsigned or source.width == 1
        return target.width > source.width and (unsigned or not target.is_unsigned)
    return str(target) in _WIDER_FLOATS.get(str(source), ())


def fold_constants(op: Operation) -> Value | None:
    """An op of constants that hold one real number each."""
    numbers: list[Any] = []
    for operand in op.operands:
        numbers.append(number(operand))
        if numbers[-1] is None:
            return None
    if not _is_float(op.results[0]):
        return None
    return _filled_with(_FOLDED[op.name], numbers, op.results[0])


def merge_scalings(op: Operation) -> Value | None:
    """(x * a) * b, where a and b are constants."""
    for inner_value, outer in (tuple(op.operands), tuple(op.operands)[::-1]):
        inner = made_by(inner_value, "multiply")
        if inner is None or number(outer) is None:
            continue
        for x, scale in (tuple(inner.operands), tuple(inner.operands)[::-1]):
            if _is_float(x) and number(scale) is not None and number(x) is None:
                return stablehlo.multiply(x, _filled_with(np.multiply, [number(scale), number(outer)], x))
    return None


def _is_float(value: Value) -> bool:
    return isinstance(mlir.tensor_type(value).element_type, ir.FloatType)


def _filled_with(compute: Callable[..., Any], numbers: list[Any], like: Value) -> Value:
    """A value of the type of `like` in which each element is `compute` of the numbers, in the type's own precision."""
    dtype = dtype_of(like)
    with np.errstate(all="ignore"):
        result = float(compute(*(np.asarray(each, dtype) for each in numbers)))
    return filled(ir.FloatAttr.get(mlir.tensor_type(like).element_type, result), mlir.tensor_shape(like))
