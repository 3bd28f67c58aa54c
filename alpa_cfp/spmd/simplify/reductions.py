"""Rules for reductions: over dims of size 1, of reductions, and of values whose layout does not matter to them.

Each rule takes a `stablehlo.reduce` of one value by one associative and commutative op, starting from that op's neutral
element, and gives a value of the same type, or None. Invariant: each element of the result is the reduction of the
same elements, in some order.
"""

import math
from collections.abc import Sequence

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import reshaped
from alpa_cfp.spmd.ir.constants import number
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import region_reducer
from alpa_cfp.spmd.simplify.rewriting import made_by

_NEUTRAL = {"add": 0, "multiply": 1, "maximum": -math.inf, "minimum": math.inf}


def reduce_nothing(op: Operation) -> Value | None:
    """A reduction over dims of size 1 is a reshape."""
    shape = mlir.tensor_shape(op.operands[0])
    if any(shape[dim] != 1 for dim in mlir.int_array(op, "dimensions")) or _reducer(op) is None:
        return None
    return reshaped(op.operands[0], mlir.tensor_shape(op.results[0]))


def reduce_a_reduction(op: Operation) -> Value | None:
    """A reduction of a reduction by the same op is one over the dims of both."""
    inner = made_by(op.operands[0], "reduce")
    if inner is None or _reducer(op) is None or _reducer(op) != _reducer(inner):
        return None
    below = mlir.int_array(inner, "dimensions")
    kept = [dim for dim in range(len(mlir.tensor_shape(inner.operands[0]))) if dim not in below]
    return _reduced(op, inner.operands[0], [*below, *(kept[dim] for dim in mlir.int_array(op, "dimensions"))])


def reduce_under_transpose(op: Operation) -> Value | None:
    """A reduction does not see a transpose that leaves the remaining dims in their order."""
    inner = made_by(op.operands[0], "transpose")
    if inner is None or _reducer(op) is None:
        return None
    permutation = mlir.int_array(inner, "permutation")
    reduced = [permutation[dim] for dim in mlir.int_array(op, "dimensions")]
    kept = [dim for dim in permutation if dim not in reduced]
    return _reduced(op, inner.operands[0], reduced) if kept == sorted(kept) else None


def reduce_under_reshape(op: Operation) -> Value | None:
    """A reduction does not see a reshape that splits and merges none but the dims that it reduces."""
    inner = made_by(op.operands[0], "reshape")
    if inner is None or _reducer(op) is None:
        return None
    reduced = _reduced_under(
        mlir.tensor_shape(inner.operands[0]), mlir.tensor_shape(op.operands[0]), mlir.int_array(op, "dimensions")
    )
    return _reduced(op, inner.operands[0], reduced) if reduced else None


def _reduced_under(source: Sequence[int], shape: Sequence[int], dims: list[int]) -> list[int] | None:
    """The dims of `source` whose reduction gives what reducing the `dims` of its reshape to `shape` gives.

    None where a dim that stays was split or merged, or dims of size 1 leave it open which of them stays.
    """
    kept = {extent for dim, extent in enumerate(_extents(shape)) if dim not in dims}
    if 0 in source or any(size == 1 for _, size in kept):
        return None
    extents = _extents(source)
    if not kept <= set(extents):
        return None
    return [dim for dim, extent in enumerate(extents) if extent not in kept]


def _extents(shape: Sequence[int]) -> list[tuple[int, int]]:
    """For each dim the number of indices that the dims before it have together, and its size.

    In shapes of as many elements, dims of the same extent (and of a size above 1) are the same dim.
    """
    return [(math.prod(shape[:dim]), size) for dim, size in enumerate(shape)]


def _reducer(op: Operation) -> str | None:
    """The reducer of a reduction of one value from the neutral element of its op, else None."""
    if len(op.operands) != 2:
        return None
    reducer = region_reducer(op)
    start = number(op.operands[1])
    if reducer is None or start is None:
        return None
    return reducer if start == _neutral(reducer, mlir.tensor_type(op.results[0]).element_type) else None


def _neutral(reducer: str, element_type: ir.Type) -> float | None:
    if not isinstance(element_type, ir.IntegerType):
        return _NEUTRAL.get(reducer)
    boolean = element_type.width == 1
    if reducer in ("and", "or"):
        # A bool is 1 bit: all of them set is 1. Of wider integers, -1 in two's complement.
        return 0 if reducer == "or" else (1 if boolean else -1)
    if reducer in ("add", "multiply") and not boolean:
        return _NEUTRAL[reducer]
    return None


def _reduced(op: Operation, value: Value, dims: Sequence[int]) -> Value:
    """`value` reduced over `dims` as `op` reduces its operand."""
    attributes = mlir.attributes_of(op) | {"dimensions": ir.DenseI64ArrayAttr.get(sorted(dims))}
    operands, reducer = [value, op.operands[1]], region_reducer(op)
    return mlir.create(op.name, [op.results[0].type], operands, attributes, reducer=reducer).results[0]
