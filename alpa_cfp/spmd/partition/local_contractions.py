"""From a global op to one device's op: reductions, dots and convolutions.

Where the contracted dims are split, each device's result is a partial sum; the handlers mark it so, and
`LocalContext` checks that it is then reduced over just those mesh axes.
"""

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import reshaped
from alpa_cfp.spmd.ir.constants import is_zero
from alpa_cfp.spmd.ir.mlir import Operation
from alpa_cfp.spmd.ir.op_kinds import is_made_over_devices, region_reducer
from alpa_cfp.spmd.partition.local_context import LocalContext
from alpa_cfp.spmd.partition.local_ops import handles, localize_results, require, require_unsplit
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis

# Reducing the initial value once on every device changes nothing for these.
_IDEMPOTENT = frozenset({"maximum", "minimum", "and", "or"})


@handles("stablehlo.reduce")
def _reduce(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    reduced = mlir.int_array(op, "dimensions")
    count = len(op.results)
    axes: list[Axis] = []
    for operand, sharding in zip(list(op.operands)[:count], shardings, strict=True):
        own = ctx.sharding(operand)
        kept = tuple(split for dim, split in enumerate(own.dims) if dim not in reduced)
        require(kept == sharding.dims, op, "operand and result are split differently")
        axes += [axis for dim in reduced for axis in own.dims[dim]]
    reducer = region_reducer(op)
    if axes:
        require(is_made_over_devices(op), op, "a reduction that no collective makes is split")
        if count > 1:
            _reduce_parts(ctx, op, shardings)
            return
        initial = op.operands[1]
        if reducer not in _IDEMPOTENT and not (reducer == "add" and is_zero(initial)):
            with ir.InsertionPoint(op), op.location:
                op.operands[1] = ctx.on_first(initial, axes, elsewhere=0 if reducer == "add" else 1)
    localize_results(ctx, op, shardings)
    ctx.mark_partial(op.results[0], axes, str(reducer))


def _reduce_parts(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    """Reduce each device's part, then the devices' results, in order: an argmax needs no more of the other devices."""
    reduced = mlir.int_array(op, "dimensions")
    count = len(op.results)
    splits = {tuple(ctx.sharding(operand).dims[dim] for dim in reduced) for operand in list(op.operands)[:count]}
    require(len(splits) == 1, op, "its operands are split differently")
    (split,) = ([axes for axes in dims if axes] for dims in splits)
    require(len(split) == 1, op, "a reduction of several arrays is split along several dims")
    (axes,) = split
    require(
        not any(a.overlaps(b) for own in shardings for a in axes for b in own.axes),
        op,
        "its result is split along the same axes",
    )
    localize_results(ctx, op, shardings)
    with ir.InsertionPoint(op), op.location:
        part = op.clone()
        for i, result in enumerate(part.results):
            shape = mlir.tensor_shape(result)
            op.operands[i] = ctx.all_gather(reshaped(result, [1, *shape]), [axes, *([()] * len(shape))])
    mlir.set_int_array(op, "dimensions", [0])
    for result in op.results:
        ctx.mark_reduced(result, axes)


@handles("stablehlo.dot_general")
def _dot_general(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left, right = (ctx.sharding(operand) for operand in op.operands)
    contracted = _same(op, left, numbers.lhs_contracting_dimensions, right, numbers.rhs_contracting_dimensions)
    batch = _same(op, left, numbers.lhs_batching_dimensions, right, numbers.rhs_batching_dimensions)
    free_left = _free(left, [*numbers.lhs_contracting_dimensions, *numbers.lhs_batching_dimensions])
    free_right = _free(right, [*numbers.rhs_contracting_dimensions, *numbers.rhs_batching_dimensions])
    require((*batch, *free_left, *free_right) == shardings[0].dims, op, "operands and result are split differently")
    localize_results(ctx, op, shardings)
    ctx.mark_partial(op.results[0], [axis for split in contracted for axis in split], "add")


def _same(
    op: Operation, left: ArraySharding, left_dims: Sequence[int], right: ArraySharding, right_dims: Sequence[int]
) -> tuple:
    pairs = [(left.dims[i], right.dims[j]) for i, j in zip(left_dims, right_dims, strict=True)]
    require(all(a == b for a, b in pairs), op, "the operands' common dims are split differently")
    return tuple(a for a, _ in pairs)


def _free(sharding: ArraySharding, taken: Sequence[int]) -> tuple:
    return tuple(split for dim, split in enumerate(sharding.dims) if dim not in taken)


@handles("stablehlo.convolution")
def _convolution(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    image, kernel = op.operands
    result = shardings[0]
    require_unsplit(ctx, op, image, numbers.input_spatial_dimensions)
    require_unsplit(ctx, op, kernel, numbers.kernel_spatial_dimensions)
    require(not any(result.dims[dim] for dim in numbers.output_spatial_dimensions), op, "a spatial dim is split")
    batch = ctx.sharding(image).dims[numbers.input_batch_dimension]
    channels = ctx.sharding(image).dims[numbers.input_feature_dimension]
    kernel_in = ctx.sharding(kernel).dims[numbers.kernel_input_feature_dimension]
    kernel_out = ctx.sharding(kernel).dims[numbers.kernel_output_feature_dimension]
    out_batch = result.dims[numbers.output_batch_dimension]
    out_channels = result.dims[numbers.output_feature_dimension]
    require(kernel_out == out_channels, op, "the kernel and the result are split differently")
    feature_groups = mlir.integer(op, "feature_group_count")
    batch_groups = mlir.integer(op, "batch_group_count")
    if feature_groups > 1:
        require(
            channels == out_channels and not kernel_in and batch == out_batch, op, "grouped channels are split unevenly"
        )
        _divide_groups(op, "feature_group_count", feature_groups, result, numbers.output_feature_dimension)
    elif batch_groups > 1:
        require(
            batch == out_channels and not out_batch and channels == kernel_in, op, "batch groups are split unevenly"
        )
        _divide_groups(op, "batch_group_count", batch_groups, result, numbers.output_feature_dimension)
    else:
        require(batch == out_batch and channels == kernel_in, op, "operands and result are split differently")
    localize_results(ctx, op, shardings)
    ctx.mark_partial(op.results[0], kernel_in, "add")


def _divide_groups(op: Operation, name: str, groups: int, sharding: ArraySharding, dim: int) -> None:
    parts = sharding.num_shards(dim)
    require(groups % parts == 0, op, f"{groups} groups are split in {parts}")
    op.attributes[name] = mlir.i64(groups // parts)
