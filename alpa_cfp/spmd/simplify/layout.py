"""Rules for ops that move elements: merge them, and drop those that move nothing or broadcast an iota.

Each rule takes one op and gives a value of the same type, or None. Invariants: the result has the same elements at the
same places; a reshape, transpose or broadcast that stays is never one of the same kind over another, and does something
that no plainer op would do (identity before reshape before transpose or broadcast).
"""

import math

from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import broadcast, reshaped, transposed, typed
from alpa_cfp.spmd.ir.constants import filled, splat
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import padded_dims
from alpa_cfp.spmd.simplify.rewriting import made_by

_PERMUTATION, _DIMS = "permutation", "broadcast_dimensions"


def simplify_reshape(op: Operation) -> Value | None:
    """Drop a reshape to the same shape; merge it with the reshape, iota or broadcast number below it."""
    operand, shape = op.operands[0], mlir.tensor_shape(op.results[0])
    if mlir.tensor_shape(operand) == shape:
        return operand
    inner = made_by(operand, "reshape")
    if inner is not None:
        return reshaped(inner.operands[0], shape)
    iota = made_by(operand, "iota")
    if iota is not None and (dims := _kept_dims(mlir.tensor_shape(operand), shape)) is not None:
        return _laid_out_iota(iota, shape, dims)
    element = splat(operand)
    return filled(element, shape) if element is not None else None


def simplify_transpose(op: Operation) -> Value | None:
    """Drop a transpose that moves nothing; one that moves dims of size 1 only becomes a reshape; merge it with the
    transpose or the broadcast below it."""
    operand, permutation = op.operands[0], mlir.int_array(op, _PERMUTATION)
    sizes, shape = mlir.tensor_shape(operand), mlir.tensor_shape(op.results[0])
    moved = [dim for dim in permutation if sizes[dim] != 1]
    if moved == sorted(moved):
        return reshaped(operand, shape)
    inner = made_by(operand, "transpose")
    if inner is not None:
        below = mlir.int_array(inner, _PERMUTATION)
        return transposed(inner.operands[0], [below[dim] for dim in permutation])
    inner = made_by(operand, "broadcast_in_dim")
    if inner is not None:
        dims = [permutation.index(dim) for dim in mlir.int_array(inner, _DIMS)]
        return broadcast(inner.operands[0], shape, dims)
    element = splat(operand)
    return filled(element, shape) if element is not None else None


def simplify_broadcast(op: Operation) -> Value | None:
    """A broadcast that repeats nothing becomes a reshape or a transpose; merge it with the broadcast, or with a
    reshape that only adds or drops dims of size 1, below it."""
    operand, shape, dims = op.operands[0], mlir.tensor_shape(op.results[0]), mlir.int_array(op, _DIMS)
    sizes = mlir.tensor_shape(operand)
    iota = made_by(operand, "iota")
    if iota is not None and (laid_out := _laid_out_iota(iota, shape, dims)) is not None:
        return laid_out
    moved = [dim for dim, size in zip(dims, sizes, strict=True) if size != 1]
    if math.prod(sizes) == math.prod(shape) and 0 not in shape:
        if moved == sorted(moved):
            return reshaped(operand, shape)
        order = sorted(range(len(dims)), key=lambda dim: dims[dim])
        return reshaped(transposed(operand, order), shape)
    element = splat(operand)
    if element is not None and sizes:
        return filled(element, shape)
    inner = made_by(operand, "broadcast_in_dim")
    if inner is not None:
        return broadcast(inner.operands[0], shape, [dims[dim] for dim in mlir.int_array(inner, _DIMS)])
    inner = made_by(operand, "reshape")
    if inner is not None:
        source_dims = _dims_without_reshape(mlir.tensor_shape(inner.operands[0]), sizes, dims, shape)
        if source_dims is not None:
            return broadcast(inner.operands[0], shape, source_dims)
    return None


def simplify_slice(op: Operation) -> Value | None:
    """A slice of everything; a slice that takes exactly one operand of a concatenation."""
    operand, result = op.operands[0], op.results[0]
    if operand.type == result.type and all(stride == 1 for stride in mlir.int_array(op, "strides")):
        return operand
    joined = made_by(operand, "concatenate")
    if joined is None or any(stride != 1 for stride in mlir.int_array(op, "strides")):
        return None
    dim, start = mlir.integer(joined, "dimension"), 0
    starts = mlir.int_array(op, "start_indices")
    for part in joined.operands:
        if start == starts[dim] and part.type == result.type:
            return part
        start += mlir.tensor_shape(part)[dim]
    return None


def simplify_dynamic_slice(op: Operation) -> Value | None:
    """A slice of everything: its start is clamped to 0."""
    return op.operands[0] if op.operands[0].type == op.results[0].type else None


def simplify_dynamic_update_slice(op: Operation) -> Value | None:
    """An update of everything: its start is clamped to 0."""
    return op.operands[1] if op.operands[1].type == op.results[0].type else None


def simplify_pad(op: Operation) -> Value | None:
    """A pad by nothing."""
    return None if padded_dims(op) else op.operands[0]


def simplify_concatenate(op: Operation) -> Value | None:
    """A concatenation of one operand, or with operands that have no elements."""
    dim = mlir.integer(op, "dimension")
    parts = [operand for operand in op.operands if mlir.tensor_shape(operand)[dim]]
    if len(parts) == 1 and parts[0].type == op.results[0].type:
        return parts[0]
    if not parts or len(parts) == len(op.operands):
        return None
    return mlir.create(op.name, [op.results[0].type], parts, mlir.attributes_of(op)).results[0]


def _laid_out_iota(iota: Operation, shape: tuple[int, ...], dims: list[int]) -> Value | None:
    """An iota of `shape` instead of `iota` with its dim i along dim `dims[i]`; None for one of a single number."""
    dim = mlir.integer(iota, "iota_dimension")
    if mlir.tensor_shape(iota.results[0])[dim] != shape[dims[dim]]:
        return None
    return stablehlo.iota(typed(iota.results[0], shape), dims[dim])


def _kept_dims(source: tuple[int, ...], target: tuple[int, ...]) -> list[int] | None:
    """The place of each dim of `source` in a reshape to `target` that only adds or drops dims of size 1, else None.

    The place of a dim of size 1 means nothing.
    """
    large = [dim for dim, size in enumerate(target) if size != 1]
    if [size for size in source if size != 1] != [target[dim] for dim in large]:
        return None
    places = iter(large)
    return [next(places) if size != 1 else 0 for size in source]


def _dims_without_reshape(
    source: tuple[int, ...], reshaped_to: tuple[int, ...], dims: list[int], shape: tuple[int, ...]
) -> list[int] | None:
    """The places of the dims of `source` in a broadcast of its reshape, if that only adds or drops dims of size 1.

    A dim of size 1 of the source may go anywhere, in order, between its neighbours; None where there is no room.
    """
    if [size for size in source if size != 1] != [size for size in reshaped_to if size != 1]:
        return None
    targets = iter([dim for dim, size in zip(dims, reshaped_to, strict=True) if size != 1])
    result = [next(targets) if size != 1 else -1 for size in source]
    large = [dim for dim in result if dim >= 0]
    if large != sorted(large):
        return result if len(large) == len(result) else None
    free_from = 0
    for i, dim in enumerate(result):
        if dim < 0:
            result[i] = free_from
        elif dim < free_from:
            return None
        free_from = result[i] + 1
    return result if free_from <= len(shape) else None
