"""From Shardy's collectives in the global program to StableHLO's collectives in one device's program."""

import re
from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import typed
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.module.partitioned import UnsupportedByShardyError
from alpa_cfp.spmd.partition.local_context import LocalContext
from alpa_cfp.spmd.partition.local_ops import handles, require, slice_part
from alpa_cfp.spmd.partition.partial_flow import DEFERRED
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, parse_axes, parse_axis_lists


@handles("sdy.all_reduce")
def _all_reduce(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    axes = annotations.axes_attribute(op, "reduction_axes", ctx.mesh)
    operand = op.operands[0]
    if ctx.is_reduced(operand, axes):
        ctx.replace(op, operand)
        return
    reducer = ctx.take_partial(operand, axes)
    if DEFERRED in op.attributes:
        # The sum is made later, once a step: what follows is linear in it and works on the parts. The barrier keeps
        # XLA from folding the transpose behind a weight's gradient into the dot, which on CPU is then a slow one.
        with ir.InsertionPoint(op), op.location:
            part = stablehlo.optimization_barrier([operand])
        ctx.replace(op, part)
        ctx.mark_partial(part, axes, reducer)
        ctx.defer(part)
        return
    with ir.InsertionPoint(op), op.location:
        reduced = ctx.all_reduce(operand, axes, reducer)
    ctx.replace(op, reduced)


@handles("sdy.reduce_scatter")
def _reduce_scatter(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    split = parse_axis_lists(ctx.mesh, str(op.attributes["reduce_scatter_axes"]))
    value = op.operands[0]
    reducer, rest = ctx.take_part(value, [axis for axes in split for axis in axes])
    with ir.InsertionPoint(op), op.location:
        for dim, axes in enumerate(split):
            if axes:
                value = reduce_scatter(ctx, value, dim, axes, reducer)
    ctx.replace(op, value)
    ctx.mark_partial(value, rest, reducer)


def reduce_scatter(ctx: LocalContext, value: Value, dim: int, axes: Sequence[Axis], reducer: str) -> Value:
    """`value` reduced over `axes`, each device keeping its part along `dim`."""
    groups = ctx.mesh.groups(axes)
    shape = list(mlir.tensor_shape(value))
    shape[dim] //= len(groups[0])
    attributes = ctx.channel(groups) | {"scatter_dimension": mlir.i64(dim)}
    return mlir.create("stablehlo.reduce_scatter", [typed(value, shape)], [value], attributes, reducer=reducer).results[
        0
    ]


@handles("sdy.all_gather")
def _all_gather(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    split = parse_axis_lists(ctx.mesh, str(op.attributes["gathering_axes"]))
    with ir.InsertionPoint(op), op.location:
        ctx.replace(op, ctx.all_gather(op.operands[0], split))


@handles("sdy.all_slice")
def _all_slice(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    split = parse_axis_lists(ctx.mesh, str(op.attributes["slicing_axes"]))
    with ir.InsertionPoint(op), op.location:
        ctx.replace(op, slice_part(ctx, op.operands[0], split))


@handles("sdy.all_to_all")
def _all_to_all(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    value = op.operands[0]
    params = re.findall(r"(\{[^}]*\}): (\d+)->(\d+)", str(op.attributes["params"]))
    with ir.InsertionPoint(op), op.location:
        for axes_text, source, target in params:
            groups = ctx.mesh.groups(parse_axes(ctx.mesh, axes_text))
            size = len(groups[0])
            shape = list(mlir.tensor_shape(value))
            require(shape[int(target)] % size == 0, op, f"dim {target} is not divided by {size}")
            shape[int(target)] //= size
            shape[int(source)] *= size
            # Without a channel, with which its groups would be of partitions: a replica has one partition.
            attributes = {
                "replica_groups": ctx.channel(groups)["replica_groups"],
                "split_dimension": mlir.i64(int(target)),
                "concat_dimension": mlir.i64(int(source)),
                "split_count": mlir.i64(size),
            }
            value = mlir.create("stablehlo.all_to_all", [typed(value, shape)], [value], attributes).results[0]
    ctx.replace(op, value)


@handles("sdy.collective_permute")
def _collective_permute(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    """Send each device the part that it has under the new sharding, from a device that has it under the old one."""
    value = op.operands[0]
    mesh, before, after = ctx.mesh, ctx.sharding(value), shardings[0]

    def part(sharding: ArraySharding, device: int) -> tuple[int, ...]:
        return tuple(mesh.linear_coordinate(device, axes) for axes in sharding.dims)

    holders: dict[tuple[int, ...], list[int]] = {}
    for device in range(mesh.num_devices):
        holders.setdefault(part(before, device), []).append(device)
    pairs = []
    for device in range(mesh.num_devices):
        sources = holders.get(part(after, device))
        if not sources:
            raise UnsupportedByShardyError(f"{op.name}: no device has the part that device {device} needs")
        # No device may send twice.
        source = device if device in sources else sources[0]
        sources.remove(source)
        pairs.append([source, device])
    with ir.InsertionPoint(op), op.location:
        # With a channel the numbers would be those of partitions, and a replica has one partition.
        moved = stablehlo.collective_permute(value, mlir.dense(np.array(pairs, dtype=np.int64)))
    ctx.replace(op, moved)


@handles("sdy.sharding_constraint", "sdy.propagation_barrier", "sdy.reshard")
def _already_done(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    operand = op.operands[0]
    require(ctx.sharding(operand).dims == shardings[0].dims, op, "a resharding was left over")
    ctx.replace(op, operand)
