"""From global branches (`case`, `if`) to one device's branches.

Takes a branching op after resharding was made explicit; lets every device compute its parts of the values in each
branch, as outside. Invariants: nothing in a branch communicates; all branches give each result with its sharding; a
program that is refused has not been edited, unless that is a `HalfLocalError`.
"""

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.module.partitioned import HalfLocalError, UnsupportedByShardyError
from alpa_cfp.spmd.partition.local_context import LocalContext
from alpa_cfp.spmd.partition.local_dispatch import localize_op
from alpa_cfp.spmd.partition.local_ops import handles, is_whole, localize_results, require, whole_on_every_device
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding

# Shardy's ops that communicate nothing.
_LOCAL = frozenset({"sdy.constant", "sdy.all_slice"})


@handles("stablehlo.case", "stablehlo.if")
def _branches(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    """Branches of which each device computes its part; all take the same one, since the choice is replicated."""
    if is_whole(ctx, op, shardings):
        whole_on_every_device(ctx, op, shardings)
        return
    require(ctx.sharding(op.operands[0]).is_replicated, op, "its choice is split")
    for nested in mlir.inner_operations(op):
        require(nested.name in _LOCAL or not nested.name.startswith("sdy."), op, f"{nested.name} is inside")
        require(nested.name != "stablehlo.rng", op, "it draws random numbers")
    for region in op.regions:
        returned = mlir.block_operations(region.blocks[0])[-1]
        given = [_sharding_of(ctx, value) for value in returned.operands]
        require(given == shardings, op, "a branch gives a result with another sharding")
    try:
        for region in op.regions:
            for inner in mlir.block_operations(region.blocks[0])[:-1]:
                localize_op(ctx, inner)
        ctx.require_reduced(op)
    except UnsupportedByShardyError as error:
        raise HalfLocalError(f"{op.name}: {error}") from error
    localize_results(ctx, op, shardings)


def _sharding_of(ctx: LocalContext, value: Value) -> ArraySharding:
    """The sharding of a value that a branch gives, computed there or outside of it."""
    known = ctx.known_sharding(value)
    if known is not None:
        return known
    producer = mlir.defining_op(value)
    assert producer is not None  # branches have no arguments
    return annotations.result_shardings(producer, ctx.mesh)[list(producer.results).index(value)]
