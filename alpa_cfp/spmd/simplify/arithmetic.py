"""Rules for elementwise ops that compute nothing.

Each rule takes one op and gives the operand, or the shorter way to it, or None. Invariant: the values stay the same bit
for bit, except that the sign of a zero may differ (x + 0 is taken for x, as in XLA).
"""

import math

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.simplify.constants import is_all, number
from alpa_cfp.spmd.simplify.rewriting import broadcast, made_by

# Float types by name -> the types that hold each of their values exactly.
_WIDER_FLOATS = {"bf16": ("f32", "f64"), "f16": ("f32", "f64"), "f32": ("f64",)}


def simplify_add(op: Operation) -> Value | None:
    """x + 0 and 0 + x."""
    return _other_operand(op, 0)


def simplify_multiply(op: Operation) -> Value | None:
    """x * 1 and 1 * x."""
    return _other_operand(op, 1)


def simplify_subtract(op: Operation) -> Value | None:
    """x - 0."""
    return op.operands[0] if is_all(op.operands[1], 0) else None


def simplify_divide(op: Operation) -> Value | None:
    """x / 1."""
    return op.operands[0] if is_all(op.operands[1], 1) else None


def simplify_and(op: Operation) -> Value | None:
    """x and True."""
    return _other_operand(op, 1) if _is_boolean(op.results[0]) else None


def simplify_or(op: Operation) -> Value | None:
    """x or False."""
    return _other_operand(op, 0)


def simplify_maximum(op: Operation) -> Value | None:
    """max(x, -inf)."""
    return _other_operand(op, -math.inf)


def simplify_minimum(op: Operation) -> Value | None:
    """min(x, inf)."""
    return _other_operand(op, math.inf)


def simplify_negate(op: Operation) -> Value | None:
    """-(-x)."""
    inner = made_by(op.operands[0], "negate")
    return inner.operands[0] if inner is not None else None


def simplify_not(op: Operation) -> Value | None:
    """Not (not x)."""
    inner = made_by(op.operands[0], "not")
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
    """A select or clamp with a scalar operand: it is laid out, since in HLO all operands have one shape."""
    shape = mlir.tensor_shape(op.results[0])
    if not shape or all(mlir.tensor_shape(operand) for operand in op.operands):
        return None
    operands = [operand if mlir.tensor_shape(operand) else broadcast(operand, shape, []) for operand in op.operands]
    return mlir.create(op.name, [op.results[0].type], operands).results[0]


def simplify_convert(op: Operation) -> Value | None:
    """A conversion to the type that a value has; a conversion of one that only widened."""
    operand, result = op.operands[0], op.results[0]
    if operand.type == result.type:
        return operand
    inner = made_by(operand, "convert")
    if inner is None:
        return None
    types = [mlir.tensor_type(value).element_type for value in (inner.operands[0], operand, result)]
    if not _widens(*types):
        return None
    if inner.operands[0].type == result.type:
        return inner.operands[0]
    return mlir.create("stablehlo.convert", [result.type], [inner.operands[0]]).results[0]


def _widens(source: ir.Type, through: ir.Type, target: ir.Type) -> bool:
    """Whether source -> through -> target gives for each value what source -> target gives."""
    if isinstance(source, ir.IntegerType) and isinstance(through, ir.IntegerType):
        # An unsigned source has one bit to spare in a wider signed type; a bool is unsigned.
        unsigned = source.is_unsigned or source.width == 1
        return through.width > source.width and (unsigned or not through.is_unsigned)
    return str(through) in _WIDER_FLOATS.get(str(source), ())


def _is_boolean(value: Value) -> bool:
    return str(mlir.tensor_type(value).element_type) == "i1"


def _other_operand(op: Operation, neutral: float) -> Value | None:
    """The other operand of a commutative op if one operand is `neutral` throughout."""
    left, right = op.operands
    if is_all(right, neutral):
        return left
    return right if is_all(left, neutral) else None
