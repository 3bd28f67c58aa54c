"""Which handler makes one device's op of a global op: takes an op whose operands are local already, and edits it.

Invariant: as of the handlers (`local_ops`); an op that none covers, or that would use a partial sum as if it were the
sum, raises UnsupportedByShardyError.
"""

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation
from alpa_cfp.spmd.module.partitioned import HalfLocalError, UnsupportedByShardyError
from alpa_cfp.spmd.partition import local_ops
from alpa_cfp.spmd.partition.local_context import LocalContext
from alpa_cfp.spmd.partition.whole_ops import compute_whole
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding
from alpa_cfp.spmd.shardings.sharding_rules import RULELESS_ELEMENTWISE

_PARTIAL_CONSUMERS = ("sdy.all_reduce", "sdy.reduce_scatter")


def localize_op(ctx: LocalContext, op: Operation, *, whole: bool = False) -> None:
    """Let `op` compute one device's part of its results.

    Args:
        ctx: What is known of the program.
        op: The op.
        whole: Whether an op that no handler covers is computed whole on every device (see `whole_ops`).
    """
    shardings = annotations.result_shardings(op, ctx.mesh)
    if op.name not in _PARTIAL_CONSUMERS:
        require_partials_deferred(ctx, op)
    try:
        _handle(ctx, op, shardings)
    except HalfLocalError:
        raise
    except UnsupportedByShardyError:
        if not whole:
            raise
        compute_whole(ctx, op, shardings)


def _handle(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    if op.name in local_ops.HANDLERS:
        local_ops.HANDLERS[op.name](ctx, op, shardings)
    elif op.name in local_ops.ELEMENTWISE or op.name in RULELESS_ELEMENTWISE:
        local_ops.elementwise(ctx, op, shardings)
    else:
        raise UnsupportedByShardyError(f"{op.name} is not covered")


def require_partials_deferred(ctx: LocalContext, op: Operation) -> None:
    """A partial sum may only be used by its reduction; after a deferred reduction it counts as reduced."""
    for operand in mlir.operands_deep(op):
        if ctx.is_partial(operand) and not ctx.is_deferred(operand):
            raise UnsupportedByShardyError(f"{op.name} uses a partial sum that was not reduced")
