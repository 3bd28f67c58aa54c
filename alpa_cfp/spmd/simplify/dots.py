"""Matrix products in the one form that the strategies for dots are enumerated for.

Takes any `stablehlo.dot_general`. Gives one whose batch dims come first and in order on both sides, and which has
exactly one free dim on each side and one contracting dim; several dims become one by a reshape, behind a transpose
where they are not neighbours, and one that is missing is inserted with size 1. A transpose that does nothing but
exchange an operand's free and contracting dim, or a result's two free dims, is read through. Invariant: each element of
the result is the same sum of products. The forked jaxlib had this from XLA's DotDecomposer, TransposeFolding and
AlgebraicSimplifier and from its own NormalizeDotDimension.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import reshaped, transposed
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.simplify.rewriting import live_users, made_by

_NUMBERS = "dot_dimension_numbers"


@dataclass(frozen=True, slots=True)
class _Side:
    """One operand of a dot and what its dims are, each group in the order in which the dot takes it."""

    value: Value
    batch: tuple[int, ...]
    free: tuple[int, ...]
    contracting: tuple[int, ...]

    @property
    def free_first(self) -> bool:
        """Whether the free dims come before the contracting ones where they need not be moved."""
        return min(self.free, default=-1) < min(self.contracting, default=len(self.free) + len(self.batch))

    @property
    def order(self) -> tuple[int, ...]:
        """All dims in the order that a canonical dot can read, as near to the present one as can be."""
        if self.free_first:
            return (*self.batch, *self.free, *self.contracting)
        return (*self.batch, *self.contracting, *self.free)

    @property
    def in_order(self) -> bool:
        """Whether a canonical dot can read the operand without a transpose."""
        return self.order == tuple(range(len(self.order)))

    @property
    def canonical(self) -> bool:
        """Whether a canonical dot can read the operand as it is."""
        return len(self.free) == 1 and len(self.contracting) == 1 and self.in_order

    def under_transpose(self) -> "_Side | None":
        """The same operand read from under the transpose that made it."""
        op = made_by(self.value, "transpose")
        if op is None:
            return None
        source = mlir.int_array(op, "permutation")
        groups = ((source[dim] for dim in group) for group in (self.batch, self.free, self.contracting))
        return _Side(op.operands[0], *(tuple(group) for group in groups))


def make_dot_canonical(op: Operation) -> Value | None:
    """Rule for `dot_general`: the canonical dot, reshaped to the type of `op`; None where it is canonical already."""
    sides = _sides(op)
    if all(made_by(side.value, "transpose") is None and side.canonical for side in sides):
        return None  # nearly all dots, most of the time
    given = _same_contracting_order(*sides)
    lhs, rhs = _same_contracting_order(*(_read_through(side) for side in given))
    if all(old.canonical and old.value == new.value for old, new in zip(given, (lhs, rhs), strict=True)):
        return None
    batch = tuple(mlir.tensor_shape(lhs.value)[dim] for dim in lhs.batch)
    values = [_merged(side) for side in (lhs, rhs)]
    free = [_size(side, side.free) for side in (lhs, rhs)]
    result = ir.RankedTensorType.get([*batch, *free], mlir.tensor_type(op.results[0]).element_type)
    attributes = mlir.attributes_of(op) | {_NUMBERS: _numbers(len(batch), lhs, rhs)}
    dot = mlir.create("stablehlo.dot_general", [result], values, attributes)
    return reshaped(dot.results[0], mlir.tensor_shape(op.results[0]))


def exchange_operands(op: Operation) -> Value | None:
    """Rule for `transpose`: of a canonical dot that nothing else uses, with its free dims exchanged, it is the dot of
    the exchanged operands."""
    dot = made_by(op.operands[0], "dot_general")
    if dot is None or "algorithm" in dot.attributes or not is_canonical_dot(dot):
        return None
    permutation = mlir.int_array(op, "permutation")
    batch = len(permutation) - 2
    if permutation != [*range(batch), batch + 1, batch] or len(live_users(dot.results[0])) != 1:
        return None
    lhs, rhs = _sides(dot)
    attributes = mlir.attributes_of(dot) | {_NUMBERS: _numbers(batch, rhs, lhs)}
    if "precision_config" in attributes:
        attributes["precision_config"] = ir.ArrayAttr.get(list(ir.ArrayAttr(attributes["precision_config"]))[::-1])
    return mlir.create("stablehlo.dot_general", [op.results[0].type], [rhs.value, lhs.value], attributes).results[0]


def is_canonical_dot(op: Operation) -> bool:
    """Whether the `dot_general` `op` has the form that `make_dot_canonical` gives."""
    return all(side.canonical for side in _sides(op))


def _sides(op: Operation) -> tuple[_Side, _Side]:
    numbers = stablehlo.DotDimensionNumbers(op.attributes[_NUMBERS])
    return (
        _side(op.operands[0], numbers.lhs_batching_dimensions, numbers.lhs_contracting_dimensions),
        _side(op.operands[1], numbers.rhs_batching_dimensions, numbers.rhs_contracting_dimensions),
    )


def _side(value: Value, batch: list[int], contracting: list[int]) -> _Side:
    taken = {*batch, *contracting}
    free = tuple(dim for dim in range(len(mlir.tensor_shape(value))) if dim not in taken)
    return _Side(value, tuple(batch), free, tuple(contracting))


def _read_through(side: _Side) -> _Side:
    """`side` without the transposes above it, unless it then needs one of its own and did not before."""
    while (under := side.under_transpose()) is not None:
        if (side.canonical and not under.canonical) or (side.in_order and not under.in_order):
            break
        side = under
    return side


def _same_contracting_order(lhs: _Side, rhs: _Side) -> tuple[_Side, _Side]:
    """Both sides with the contracting dims in the order, the same for both, that needs the fewest transposes."""

    def ordered(by: _Side) -> tuple[_Side, _Side]:
        order = sorted(range(len(by.contracting)), key=lambda i: by.contracting[i])
        left, right = (replace(side, contracting=tuple(side.contracting[i] for i in order)) for side in (lhs, rhs))
        return left, right

    return max((ordered(lhs), ordered(rhs)), key=lambda sides: sum(side.in_order for side in sides))


def _size(side: _Side, dims: tuple[int, ...]) -> int:
    shape = mlir.tensor_shape(side.value)
    return math.prod(shape[dim] for dim in dims)


def _merged(side: _Side) -> Value:
    """The operand with its batch dims, one free and one contracting dim."""
    batch = [mlir.tensor_shape(side.value)[dim] for dim in side.batch]
    free, contracting = _size(side, side.free), _size(side, side.contracting)
    rest = [free, contracting] if side.free_first else [contracting, free]
    return reshaped(transposed(side.value, side.order), [*batch, *rest])


def _numbers(batch: int, lhs: _Side, rhs: _Side) -> Any:
    dims = list(range(batch))
    contracting = [[batch + 1 if side.free_first else batch] for side in (lhs, rhs)]
    return stablehlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=dims,
        rhs_batching_dimensions=dims,
        lhs_contracting_dimensions=contracting[0],
        rhs_contracting_dimensions=contracting[1],
    )
