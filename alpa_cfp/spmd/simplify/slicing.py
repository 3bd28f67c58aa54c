"""Rules for ops that cut and join arrays: those that take everything, add nothing or join one thing, and empty parts.

Each rule takes one op and gives a value of the same type, or None. Invariant: the result has the same elements at the
same places.
"""

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.simplify.rewriting import made_by


def simplify_slice(op: Operation) -> Value | None:
    """A slice of everything; a slice that takes exactly one operand of a concatenation."""
    operand, result = op.operands[0], op.results[0]
    if operand.type == result.type and all(stride == 1 for stride in mlir.int_array(op, "strides")):
        return operand
    joined = made_by(operand, "concatenate")
    if joined is None or any(stride != 1 for stride in mlir.int_array(op, "strides")):
        return None
    dim, start = _joined_dim(joined), 0
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
    amounts = (mlir.int_array(op, name) for name in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    return op.operands[0] if not any(amount for each in amounts for amount in each) else None


def simplify_concatenate(op: Operation) -> Value | None:
    """A concatenation of one operand, or with operands that have no elements."""
    dim = _joined_dim(op)
    parts = [operand for operand in op.operands if mlir.tensor_shape(operand)[dim]]
    if len(parts) == 1 and parts[0].type == op.results[0].type:
        return parts[0]
    if not parts or len(parts) == len(op.operands):
        return None
    attributes = {name: op.attributes[name] for name in op.attributes}
    return mlir.create("stablehlo.concatenate", [op.results[0].type], parts, attributes).results[0]


def _joined_dim(op: Operation) -> int:
    return mlir.integer(op, "dimension")
