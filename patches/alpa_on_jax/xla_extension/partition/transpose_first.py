"""Transpose the result of a contraction before it is scattered: reduce_scatter(a b)^T becomes reduce_scatter((a b)^T).

JAX writes the gradient of a weight as a contraction that is transposed afterwards. A contraction can give its result in
either order, but where the sum is scattered in between, XLA copies it into the order in which parts are contiguous, and
copies the part back. Input: one device's program. Invariant: every value of the program stays the same.
"""

from typing import Any

from jaxlib.mlir import ir

from alpa_on_jax.xla_extension import mlir
from alpa_on_jax.xla_extension.mlir import Operation, Value

_REDUCE_SCATTER, _TRANSPOSE = "stablehlo.reduce_scatter", "stablehlo.transpose"


def transpose_first(block: Any) -> None:
    """Put reduce-scatters of contractions in `block` behind the transposes of what they give, in place."""
    for scatter in reversed(mlir.block_operations(block)):
        if scatter.name == _REDUCE_SCATTER and _is_of_contraction(scatter.operands[0]):
            while len(users := mlir.users(scatter.results[0])) == 1 and users[0].name == _TRANSPOSE:
                _swap(scatter, users[0])


def _is_of_contraction(value: Value) -> bool:
    """Whether `value` is the result of a contraction that is used once, possibly scattered along other dims."""
    op = mlir.defining_op(value)
    while op is not None and op.name == _REDUCE_SCATTER and len(mlir.users(op.results[0])) == 1:
        op = mlir.defining_op(op.operands[0])
    return op is not None and op.name == "stablehlo.dot_general" and len(mlir.users(op.results[0])) == 1


def _swap(scatter: Operation, transpose: Operation) -> None:
    permutation = mlir.int_array(transpose, "permutation")
    shape, element_type = mlir.tensor_shape(scatter.operands[0]), mlir.tensor_type(scatter.operands[0]).element_type
    part, whole = transpose.results[0], ir.RankedTensorType.get([shape[dim] for dim in permutation], element_type)
    part_type = part.type
    part.replace_all_uses_with(scatter.results[0])
    transpose.operands[0] = scatter.operands[0]
    scatter.operands[0] = part
    part.set_type(whole)
    scatter.results[0].set_type(part_type)
    dim = permutation.index(mlir.integer(scatter, "scatter_dimension"))
    scatter.attributes["scatter_dimension"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
    scatter.move_after(transpose)
