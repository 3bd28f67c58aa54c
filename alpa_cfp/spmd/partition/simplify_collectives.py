"""Less communication, and fewer copies around it, in one device's program.

Takes the block of a program after `local_ops` and edits it in place. Invariant: every value of the program stays the
same, in `merge_sums` up to rounding.
"""

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import typed
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import region_reducer

_ALL_REDUCE, _REDUCE_SCATTER = _SUMS = ("stablehlo.all_reduce", "stablehlo.reduce_scatter")
_MOVES = ("stablehlo.transpose", "stablehlo.reshape")
_COLLECTIVES = (*_SUMS, "stablehlo.all_gather", "stablehlo.all_to_all", "stablehlo.collective_permute")


def merge_sums(block: Any) -> None:
    """Sum over devices once where sums over devices are added: all_reduce(a) + all_reduce(b) is all_reduce(a + b).

    Shardy inserts an all-reduce behind each contraction whose result is a partial sum, also where several results are
    added: in the gradient of an activation that goes through two branches, or into query, key and value. XLA
    communicates once there. A transpose or reshape between a sum and the addition is made before the sum;
    reduce-scatters along one dim are merged as well. Values stay the same up to rounding.
    """
    for op in mlir.block_operations(block):
        if op.name != "stablehlo.add":
            continue
        left, right = (_sum_behind(operand) for operand in op.operands)
        if left is None or right is None or left == right or not _same_sum(left, right):
            continue
        for total in (left, right):
            _sum_last(total, op)
        with ir.InsertionPoint(op), op.location:
            right.operands[0] = stablehlo.add(left.operands[0], right.operands[0])
        right.move_before(op)
        mlir.replace(op, right.results[0])
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


def transpose_first(block: Any) -> None:
    """Transpose the result of a contraction before it is summed over devices: sum(a b)^T becomes sum((a b)^T).

    JAX writes the gradient of a weight as a contraction that is transposed afterwards. A contraction can give its
    result in either order; but with the sum in between XLA transposes it on its own: a user of the sum reads it against
    its layout, and a value that is scattered is copied into the order in which parts are contiguous, and back.
    """
    for total in reversed(mlir.block_operations(block)):
        if total.name in _SUMS and len(total.operands) == 1 and _is_contraction(total.operands[0]):
            while len(users := mlir.users(total.results[0])) == 1 and users[0].name == "stablehlo.transpose":
                _swap(total, users[0])


def _is_contraction(value: Value) -> bool:
    """Whether `value` is the result of a contraction that is used once, possibly summed along other axes before."""
    op = mlir.defining_op(value)
    while op is not None and op.name in _SUMS and len(mlir.users(op.results[0])) == 1:
        op = mlir.defining_op(op.operands[0])
    return op is not None and op.name == "stablehlo.dot_general" and len(mlir.users(op.results[0])) == 1


def _swap(total: Operation, transpose: Operation) -> None:
    permutation = mlir.int_array(transpose, "permutation")
    shape = mlir.tensor_shape(total.operands[0])
    result, result_type = transpose.results[0], transpose.results[0].type
    whole = typed(result, [shape[dim] for dim in permutation])
    result.replace_all_uses_with(total.results[0])
    transpose.operands[0] = total.operands[0]
    total.operands[0] = result
    result.set_type(whole)
    total.results[0].set_type(result_type)
    if "scatter_dimension" in total.attributes:
        dim = permutation.index(mlir.integer(total, "scatter_dimension"))
        total.attributes["scatter_dimension"] = mlir.i64(dim)
    total.move_after(transpose)


def share_collectives(block: Any) -> None:
    """Communicate once where the same value is communicated twice in the same way.

    Shardy, and a pass that inserts a constraint for each user of a value, reshard the value once a user. Parameters are
    the exception: one that is gathered for the forward pass and again for the backward pass is not to be kept in
    between (ZeRO-3), and auto-sharding has counted both.
    """
    first: dict[tuple[Any, ...], Operation] = {}
    for op in mlir.block_operations(block):
        if op.name not in _COLLECTIVES or _gathers_parameter(op):
            continue
        reducer = region_reducer(op) if len(op.regions) else ""
        if reducer is None:
            continue
        numbers = sorted((name, str(op.attributes[name])) for name in op.attributes if name != "channel_handle")
        earlier = first.setdefault((op.name, reducer, *op.operands, *numbers), op)
        if earlier != op:
            for old, new in zip(op.results, earlier.results, strict=True):
                old.replace_all_uses_with(new)
            op.erase()


def _gathers_parameter(op: Operation) -> bool:
    return op.name == "stablehlo.all_gather" and all(mlir.defining_op(operand) is None for operand in op.operands)
