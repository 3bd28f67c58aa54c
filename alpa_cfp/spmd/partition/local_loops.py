"""From a global loop to one device's loop.

`settle_loops` takes an annotated program before resharding is made explicit, and writes for each loop, and for each op
in it, how it is split: along the dims in which propagation has split a result, where no iteration works along them but
for sums (`loop_dims`). The handler then makes every op in the loop local. Invariant: in a loop nothing communicates but
sums along dims that are split, where they cannot be made behind the loop, and what is carried on in other parts.
"""

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.constants import is_zero
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.module.partitioned import HalfLocalError, UnsupportedByShardyError
from alpa_cfp.spmd.partition.local_context import LocalContext
from alpa_cfp.spmd.partition.local_dispatch import localize_op
from alpa_cfp.spmd.partition.local_ops import handles, localize_results, require, whole_on_every_device
from alpa_cfp.spmd.partition.sums_after_loops import axes_summed_behind
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.annotations import RULE
from alpa_cfp.spmd.shardings.loop_dims import REDUCED, WHILE, Dim, LoopDims, shape_of
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh
from alpa_cfp.spmd.shardings.sharding_rules import give_inner_rules


def settle_loops(module: Any, mesh: LogicalMesh, *, whole: bool = False) -> None:
    """Write how loops, and the ops in them, are split, in place; loops get their rules.

    Args:
        module: The annotated program.
        mesh: The logical mesh.
        whole: Whether the dims that a loop works along are made whole where they are split.

    Raises:
        UnsupportedByShardyError: a loop works along a dim that is split, and it is not to be made whole.
    """
    for loop in give_inner_rules(module):
        dims = LoopDims(loop)
        loop.attributes[RULE] = dims.rule()
        splits = _splits(loop, dims, mesh, whole)
        for op in (loop, *dims.operations):
            if op.results:
                annotations.set_result_shardings(op, [_sharding(value, dims, splits, mesh) for value in op.results])
        _reshard_carried(loop, dims, splits, mesh)


def _splits(loop: Operation, dims: LoopDims, mesh: LogicalMesh, whole: bool) -> dict[Dim, tuple[Axis, ...]]:
    """The mesh axes along which each class of dims is split."""
    splits: dict[Dim, tuple[Axis, ...]] = {}
    for result, sharding in zip(loop.results, annotations.result_shardings(loop, mesh), strict=True):
        for dim, axes in enumerate(sharding.dims):
            if not axes:
                continue
            if dims.is_split_freely(result, dim):
                splits.setdefault(dims.class_of(result, dim), axes)
            else:
                require(whole, loop, "it works along a dim that is split")
    # No axis may split two dims of one array, or two of what a sum is of and of the sum: the later class stays whole.
    for op in (loop, *dims.operations):
        arrays = [_classes(value, dims) for value in (*op.operands, *op.results)]
        if op.name in REDUCED:
            arrays = [[kind for kinds in arrays for kind in kinds]]
        for met in arrays:
            taken: list[tuple[Dim, Axis]] = []
            for kind in met:
                axes = splits.get(kind, ())
                if any(axis.overlaps(other) for other_kind, other in taken if other_kind != kind for axis in axes):
                    del splits[kind]
                else:
                    taken += [(kind, axis) for axis in axes]
    return splits


def _reshard_carried(loop: Operation, dims: LoopDims, splits: dict[Dim, tuple[Axis, ...]], mesh: LogicalMesh) -> None:
    """Reshard what an iteration carries on where it is computed in other parts than the next one takes."""
    end = mlir.block_operations(loop.regions[1].blocks[0])[-1]
    for position, (value, result) in enumerate(zip(end.operands, loop.results, strict=True)):
        wanted = _sharding(result, dims, splits, mesh)
        if _sharding(value, dims, splits, mesh) != wanted:
            with ir.InsertionPoint(end), end.location:
                end.operands[position] = sdy.reshard(value, mlir.attribute(wanted.to_sdy()))


def _classes(value: Value, dims: LoopDims) -> list[Dim]:
    return [dims.class_of(value, dim) for dim in range(len(shape_of(value)))]


def _sharding(value: Value, dims: LoopDims, splits: dict[Dim, tuple[Axis, ...]], mesh: LogicalMesh) -> ArraySharding:
    return ArraySharding(mesh, tuple(splits.get(kind, ()) for kind in _classes(value, dims)))


@handles(WHILE)
def _loop(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    """A loop of which each device makes its part, with the ops that are in it."""
    operands = [ctx.sharding(operand) for operand in op.operands]
    if all(sharding.is_replicated for sharding in (*operands, *shardings)):
        whole_on_every_device(ctx, op, shardings)
        return
    require(operands == shardings, op, "it would reshard")
    try:
        _localize_inside(ctx, op, shardings)
    except UnsupportedByShardyError as error:
        raise HalfLocalError(f"{op.name}: {error}") from error
    summed = axes_summed_behind(op, ctx.mesh)
    for position, axes in enumerate(summed):
        if axes and not is_zero(op.operands[position]):
            # The sum over devices has the first value once.
            with ir.InsertionPoint(op), op.location:
                op.operands[position] = ctx.on_first(op.operands[position], axes)
    localize_results(ctx, op, shardings)
    for result, axes in zip(op.results, summed, strict=True):
        ctx.mark_partial(result, axes, "add")


def _localize_inside(ctx: LocalContext, loop: Operation, shardings: list[ArraySharding]) -> None:
    condition, body = (region.blocks[0] for region in loop.regions)
    for block in (condition, body):
        for argument, sharding in zip(block.arguments, shardings, strict=True):
            ctx.localize(argument, sharding)
        for op in mlir.block_operations(block)[:-1]:
            require(op.name != "stablehlo.rng", op, "it is in a loop")
            localize_op(ctx, op)
    carried = mlir.block_operations(body)[-1].operands
    require([ctx.sharding(value) for value in carried] == shardings, loop, "an iteration would reshard")
