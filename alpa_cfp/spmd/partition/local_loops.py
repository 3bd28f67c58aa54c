"""From a global loop to one device's loop.

`settle_loops` takes an annotated program before resharding is made explicit, and writes for each loop, and for each op
in it, along which of the dims that no iteration works along (`loop_dims`) they are split: those in which propagation
has split a result. The handler then makes every op in the loop local. Invariant: nothing in a loop communicates.
"""

from typing import Any

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.module.partitioned import HalfLocalError, UnsupportedByShardyError
from alpa_cfp.spmd.partition.local_context import LocalContext
from alpa_cfp.spmd.partition.local_dispatch import localize_op
from alpa_cfp.spmd.partition.local_ops import handles, localize_results, require, whole_on_every_device
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.loop_dims import WHILE, Dim, LoopDims, loops_of, shape_of
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh
from alpa_cfp.spmd.shardings.sharding_rules import give_rules


def settle_loops(module: Any, mesh: LogicalMesh, *, whole: bool = False) -> None:
    """Write how the loops of `main`, and the ops in them, are split, in place.

    Args:
        module: The annotated program.
        mesh: The logical mesh.
        whole: Whether the dims that a loop works along are made whole where they are split.

    Raises:
        UnsupportedByShardyError: a loop works along a dim that is split, and it is not to be made whole.
    """
    loops = loops_of(mlir.entry_block(mlir.main_function(module)))
    if loops:
        give_rules(module)
    for loop in loops:
        dims = LoopDims(loop)
        splits = _splits(loop, dims, mesh, whole)
        for op in (loop, *dims.operations):
            if op.results:
                annotations.set_result_shardings(op, [_sharding(value, dims, splits, mesh) for value in op.results])


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
    # No axis may split two dims of one array: the class that came later stays whole.
    for op in (loop, *dims.operations):
        for value in op.results:
            taken: list[tuple[Dim, Axis]] = []
            for kind in _classes(value, dims):
                axes = splits.get(kind, ())
                if any(axis.overlaps(other) for other_kind, other in taken if other_kind != kind for axis in axes):
                    del splits[kind]
                else:
                    taken += [(kind, axis) for axis in axes]
    return splits


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
    localize_results(ctx, op, shardings)


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
