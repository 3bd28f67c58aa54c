"""Compute an op that no handler covers whole on every device.

Its operands, and what its regions use from outside, are gathered; of its results each device keeps its part. XLA's
partitioner mostly finds something better, so such a program is not run: it predicts what one that is left to XLA may
communicate. Invariant: as in `local_ops`; what cannot be gathered raises UnsupportedByShardyError.
"""

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.partition.local_context import LocalContext
from alpa_cfp.spmd.partition.local_ops import inner_operations, require, slice_part
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding


def compute_whole(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    """Make `op`, of which the results are still whole, compute the whole of them from whole operands.

    Raises:
        UnsupportedByShardyError: it is a communication, or uses a partial sum.
    """
    require(not op.name.startswith("sdy."), op, "a communication is not computed whole")
    _drop_communication(op)
    gathered: dict[Value, Value] = {}
    for user in (op, *inner_operations(op)):
        for position, operand in enumerate(user.operands):
            if ctx.known_sharding(operand) is not None:  # it is none of the regions' own values
                if operand not in gathered:
                    gathered[operand] = _gathered(ctx, op, operand)
                user.operands[position] = gathered[operand]
    for result, sharding in zip(op.results, shardings, strict=True):
        _keep_part(ctx, op, result, sharding)


def _drop_communication(op: Operation) -> None:
    """Leave no communication in the regions of `op`: on whole values it changes nothing."""
    for nested in inner_operations(op):
        if nested.name == "sdy.constant":
            annotations.make_plain_constant(nested)
        elif nested.name.startswith("sdy."):
            require(len(nested.operands) == len(nested.results) == 1, op, f"{nested.name} is inside")
            nested.results[0].replace_all_uses_with(nested.operands[0])
            nested.erase()


def _gathered(ctx: LocalContext, op: Operation, value: Value) -> Value:
    ctx.require_reduced(op, [value])
    with ir.InsertionPoint(op), op.location:
        for dim, axes in enumerate(ctx.sharding(value).dims):
            if axes:
                value = ctx.all_gather(value, dim, axes)
    return value


def _keep_part(ctx: LocalContext, op: Operation, result: Value, sharding: ArraySharding) -> None:
    reductions = [use.owner for use in result.uses if use.owner.name == "sdy.all_reduce"]
    with ir.InsertionPoint.after(op), op.location:
        part = slice_part(ctx, result, dict(enumerate(sharding.dims)))
    if part != result:
        result.replace_all_uses_except(part, mlir.defining_op(part))
    ctx.set_sharding(part, sharding)
    for reduction in reductions:
        ctx.mark_reduced(part, annotations.axes_attribute(reduction, "reduction_axes", ctx.mesh))
