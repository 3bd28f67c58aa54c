"""Sum over devices once where sums over devices are added: all_reduce(a) + all_reduce(b) becomes all_reduce(a + b).

Shardy inserts an all-reduce behind each contraction whose result is a partial sum, also where the results of several
are added: the gradient of an activation that goes through two branches, or into query, key and value. XLA communicates
once there. A transpose or reshape between a sum and the addition is made before the sum; reduce-scatters along one dim
are merged as well. Input: one device's program. Invariant: every value of the program stays the same up to rounding.
"""

from typing import Any

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.reducers import region_reducer

_ALL_REDUCE = "stablehlo.all_reduce"
_REDUCE_SCATTER = "stablehlo.reduce_scatter"
_MOVES = ("stablehlo.transpose", "stablehlo.reshape")


def merge_sums(block: Any) -> None:
    """Merge all-reduces, and reduce-scatters, in `block`, in place."""
    for op in mlir.block_operations(block):
        if op.name != "stablehlo.add":
            continue
        left, right = (_sum_behind(operand) for operand in op.operands)
        if left is None or right is None or left == right or not _same_sum(left, right):
            continue
        for total in (left, right):
            _sum_last(total, op)
        with ir.InsertionPoint(op), op.location:
            parts = mlir.create("stablehlo.add", [left.operands[0].type], [left.operands[0], right.operands[0]])
        right.operands[0] = parts.results[0]
        right.move_before(op)
        op.results[0].replace_all_uses_with(right.results[0])
        op.erase()
        left.erase()


def _sum_behind(value: Value) -> Operation | None:
    """The sum over devices that `value` is, possibly transposed or reshaped, and that nothing else uses."""
    op = mlir.defining_op(value)
    moved = False
    while op is not None and op.name in _MOVES and len(mlir.users(op.results[0])) == 1:
        op, moved = mlir.defining_op(op.operands[0]), True
    if op is None or op.name not in ((_ALL_REDUCE,) if moved else (_ALL_REDUCE, _REDUCE_SCATTER)):
        return None
    alone = len(op.operands) == 1 and len(mlir.users(op.results[0])) == 1
    return op if alone and region_reducer(op) == "add" else None


def _same_sum(left: Operation, right: Operation) -> bool:
    """Whether both sum over the same devices and leave the same parts of the sum."""
    same = left.name == right.name and left.attributes["replica_groups"] == right.attributes["replica_groups"]
    if left.name == _ALL_REDUCE or not same:
        return same
    return left.attributes["scatter_dimension"] == right.attributes["scatter_dimension"]


def _sum_last(total: Operation, addition: Operation) -> None:
    """Let `total` come after the transposes and reshapes that are between it and `addition`."""
    (move,) = mlir.users(total.results[0])
    while move != addition:
        result = move.results[0]
        (following,) = mlir.users(result)
        result.replace_all_uses_with(total.results[0])
        move.operands[0] = total.operands[0]
        total.operands[0] = result
        total.results[0].set_type(result.type)
        total.move_after(move)
        move = following
