"""Transpose the result of a contraction before it is summed over devices: sum(a b)^T becomes sum((a b)^T).

JAX writes the gradient of a weight as a contraction that is transposed afterwards. A contraction can give its result in
either order; but with the sum in between XLA transposes it on its own: what uses the sum reads it against the grain,
and what is scattered is copied into the order in which parts are contiguous, and back. Input: one device's program.
Invariant: every value of the program stays the same.
"""

from typing import Any

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value

_SUMS = ("stablehlo.all_reduce", "stablehlo.reduce_scatter")
_TRANSPOSE = "stablehlo.transpose"


def transpose_first(block: Any) -> None:
    """Put sums of contractions in `block` behind the transposes of what they give, in place."""
    for total in reversed(mlir.block_operations(block)):
        if total.name in _SUMS and len(total.operands) == 1 and _is_of_contraction(total.operands[0]):
            while len(users := mlir.users(total.results[0])) == 1 and users[0].name == _TRANSPOSE:
                _swap(total, users[0])


def _is_of_contraction(value: Value) -> bool:
    """Whether `value` is the result of a contraction that is used once, possibly summed along other axes before."""
    op = mlir.defining_op(value)
    while op is not None and op.name in _SUMS and len(mlir.users(op.results[0])) == 1:
        op = mlir.defining_op(op.operands[0])
    return op is not None and op.name == "stablehlo.dot_general" and len(mlir.users(op.results[0])) == 1


def _swap(total: Operation, transpose: Operation) -> None:
    permutation = mlir.int_array(transpose, "permutation")
    shape, element_type = mlir.tensor_shape(total.operands[0]), mlir.tensor_type(total.operands[0]).element_type
    result, whole = transpose.results[0], ir.RankedTensorType.get([shape[dim] for dim in permutation], element_type)
    result_type = result.type
    result.replace_all_uses_with(total.results[0])
    transpose.operands[0] = total.operands[0]
    total.operands[0] = result
    result.set_type(whole)
    total.results[0].set_type(result_type)
    if "scatter_dimension" in total.attributes:
        dim = permutation.index(mlir.integer(total, "scatter_dimension"))
        total.attributes["scatter_dimension"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
    total.move_after(transpose)
