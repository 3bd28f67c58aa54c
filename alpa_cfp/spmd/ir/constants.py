"""Values that hold one number in all their elements.

Takes values and looks through the ops that only lay a number out (`broadcast_in_dim`, `reshape`, `transpose`).
Invariant: a number is given only where every element is it exactly, as the element type represents it.
"""

import math
from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import broadcast
from alpa_cfp.spmd.ir.mlir import Operation, Value

_NUMBERS = (ir.BoolAttr, ir.IntegerAttr, ir.FloatAttr)
_BROADCAST, _RESHAPE, _TRANSPOSE = "stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose"


def source_of(value: Value, through: Sequence[str] = (_BROADCAST, _RESHAPE, _TRANSPOSE)) -> Operation | None:
    """The op that makes `value`, looked for behind the ops named in `through`; None for a block argument."""
    op = mlir.defining_op(value)
    while op is not None and op.name in through:
        op = mlir.defining_op(op.operands[0])
    return op


def splat(value: Value) -> Any:
    """The element, as an attribute, that fills `value`: of a splat constant or one of a single element; else None."""
    op = source_of(value)
    return _splat_of_constant(op) if op is not None and op.name == "stablehlo.constant" else None


def number(value: Value) -> int | float | None:
    """The real number (True and False as 1 and 0) that every element of `value` is, or None."""
    return _number(splat(value))


def is_all(value: Value, wanted: float) -> bool:
    """Whether every element of `value` equals `wanted`; zeros of both signs are equal."""
    return number(value) == wanted


def is_zero(value: Value) -> bool:
    """Whether `value` is zero in all its elements, also where it is complex or was converted."""
    op = source_of(value, (_BROADCAST, _RESHAPE, "stablehlo.convert"))
    if op is None:
        return False
    if op.name == "stablehlo.complex":
        return all(map(is_zero, op.operands))
    return op.name in ("stablehlo.constant", "sdy.constant") and _number(_splat_of_constant(op)) == 0


def filled(element: Any, shape: Sequence[int]) -> Value:
    """A value of `shape` in which each element is the attribute `element`: a constant where it has one element, else
    the broadcast of one."""
    has_one = math.prod(shape) == 1
    tensor = ir.RankedTensorType.get(list(shape) if has_one else [], element.type)
    constant = stablehlo.constant(ir.DenseElementsAttr.get_splat(tensor, element))
    return constant if has_one else broadcast(constant, shape)


def _splat_of_constant(op: Operation) -> Any:
    known = mlir.known_here(_splat_of_constant)
    value = op.attributes["value"]
    if value not in known:
        elements = ir.DenseElementsAttr(value)
        known[value] = elements.get_splat_value() if elements.is_splat else None
    return known[value]


def _number(element: Any) -> int | float | None:
    return element.value if isinstance(element, _NUMBERS) else None
