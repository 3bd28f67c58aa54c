"""Make one device's op of a global op by the handler for it, or compute the op whole on every device.

Takes an op whose operands are local already, and edits it. Invariant: as of the handlers (`local_ops`); an op that none
covers, or that would use a partial sum as if it were the sum, raises UnsupportedByShardyError.
"""

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import ELEMENTWISE, RULELESS_ELEMENTWISE
from alpa_cfp.spmd.module.partitioned import HalfLocalError, UnsupportedByShardyError
from alpa_cfp.spmd.partition.local_context import LocalContext
from alpa_cfp.spmd.partition.local_ops import HANDLERS, elementwise, require, slice_part
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding

_PARTIAL_CONSUMERS = ("sdy.all_reduce", "sdy.reduce_scatter")


def localize_op(ctx: LocalContext, op: Operation, *, whole: bool = False) -> None:
    """Let `op` compute one device's part of its results.

    Args:
        ctx: What is known of the program.
        op: The op.
        whole: Whether an op that no handler covers is computed whole on every device.
    """
    shardings = annotations.result_shardings(op, ctx.mesh)
    if op.name not in _PARTIAL_CONSUMERS:
        ctx.require_reduced(op)
    try:
        if op.name in HANDLERS:
            HANDLERS[op.name](ctx, op, shardings)
        elif op.name in ELEMENTWISE or op.name in RULELESS_ELEMENTWISE:
            elementwise(ctx, op, shardings)
        else:
            raise UnsupportedByShardyError(f"{op.name} is not covered")
    except HalfLocalError:
        raise
    except UnsupportedByShardyError:
        if not whole:
            raise
        _compute_whole(ctx, op, shardings)


def _compute_whole(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    """Make `op`, of which the results are still whole, compute the whole of them from whole operands.

    Its operands, and the values that its regions use from outside, are gathered; of its results each device keeps its
    part. XLA's partitioner mostly finds something better, so such a program is not run: it predicts what one that is
    left to XLA may communicate.

    Raises:
        UnsupportedByShardyError: it is a communication.
    """
    require(not op.name.startswith("sdy."), op, "a communication is not computed whole")
    _drop_communication(op)
    gathered: dict[Value, Value] = {}
    for user in (op, *mlir.inner_operations(op)):
        for position, operand in enumerate(user.operands):
            sharding = ctx.known_sharding(operand)
            if sharding is None:
                continue  # one of the regions' own values
            if operand not in gathered:
                with ir.InsertionPoint(op), op.location:
                    gathered[operand] = ctx.all_gather(operand, sharding.dims)
            user.operands[position] = gathered[operand]
    for result, sharding in zip(op.results, shardings, strict=True):
        _keep_part(ctx, op, result, sharding)


def _drop_communication(op: Operation) -> None:
    """Leave no communication in the regions of `op`: on whole values it changes nothing."""
    for nested in mlir.inner_operations(op):
        if nested.name == "sdy.constant":
            annotations.make_plain_constant(nested)
        elif nested.name.startswith("sdy."):
            require(len(nested.operands) == len(nested.results) == 1, op, f"{nested.name} is inside")
            mlir.replace(nested, nested.operands[0])


def _keep_part(ctx: LocalContext, op: Operation, result: Value, sharding: ArraySharding) -> None:
    reductions = [use.owner for use in result.uses if use.owner.name == "sdy.all_reduce"]
    with ir.InsertionPoint.after(op), op.location:
        part = slice_part(ctx, result, sharding.dims)
    if part != result:
        result.replace_all_uses_except(part, mlir.defining_op(part))
    ctx.set_sharding(part, sharding)
    for reduction in reductions:
        ctx.mark_reduced(part, annotations.axes_attribute(reduction, "reduction_axes", ctx.mesh))
