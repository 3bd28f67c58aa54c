"""Which values hold one number in all their elements.

Takes values and looks through the ops that only lay a number out (`broadcast_in_dim`, `reshape`, `transpose`).
Invariant: a number is given only where every element is it exactly, as the element type represents it.
"""

import math
from collections.abc import Sequence

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Value
from alpa_cfp.spmd.simplify.rewriting import broadcast, typed

_LAID_OUT = ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose")


def scalar_under(value: Value) -> Value | None:
    """The constant whose one number fills `value`: a splat constant or one of a single element; else None."""
    op = mlir.defining_op(value)
    while op is not None and op.name in _LAID_OUT:
        op = mlir.defining_op(op.operands[0])
    if op is None or op.name != "stablehlo.constant":
        return None
    return op.results[0] if ir.DenseElementsAttr(op.attributes["value"]).is_splat else None


def number(value: Value) -> int | float | None:
    """The real number (True and False as 1 and 0) that every element of `value` is, or None."""
    scalar = scalar_under(value)
    if scalar is None:
        return None
    element = ir.DenseElementsAttr(scalar.owner.attributes["value"]).get_splat_value()
    if isinstance(element, ir.BoolAttr | ir.IntegerAttr | ir.FloatAttr):
        return element.value
    return None


def is_all(value: Value, wanted: float) -> bool:
    """Whether every element of `value` equals `wanted`; zeros of both signs are equal."""
    found = number(value)
    return found is not None and found == wanted


def filled(scalar: Value, shape: Sequence[int]) -> Value:
    """A value of `shape` that holds the number of the constant `scalar`, which may have any shape: a constant where it
    has one element, else the broadcast of one."""
    attr = ir.DenseElementsAttr(scalar.owner.attributes["value"])
    of_one = math.prod(shape) == 1
    type_ = typed(scalar, shape if of_one else [])
    splat = ir.DenseElementsAttr.get_splat(type_, attr.get_splat_value())
    constant = mlir.create("stablehlo.constant", [type_], [], {"value": splat}).results[0]
    return constant if of_one else broadcast(constant, shape, [])
