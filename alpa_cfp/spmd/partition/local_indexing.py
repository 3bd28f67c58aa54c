"""From a global op to one device's op: gather and scatter.

A split of the dim that is indexed (an embedding table's vocabulary) is handled as XLA's SPMD partitioner does: each
device looks up the indices in its part, the others give zero, and a sum over the devices follows. A scatter-add of
updates that are split (the gradient of an embedding, data parallel) gives partial sums; so that the array that
is added to counts once, only the first device keeps it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import broadcast, compare, constant, converted, dtype_of, reshaped
from alpa_cfp.spmd.ir.constants import is_zero
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import region_reducer
from alpa_cfp.spmd.partition.local_context import LocalContext
from alpa_cfp.spmd.partition.local_ops import handles, localize_results, require
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis

Split = tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class _IndexedDim:
    """A split operand dim that an index selects: its place in the index vector, its axes and its local size."""

    component: int
    axes: Split
    local_size: int


def _window_dims(rank: int, *dropped: Sequence[int]) -> list[int]:
    """The operand dims that appear as window dims of the result (or of the updates), in order."""
    taken = {dim for dims in dropped for dim in dims}
    return [dim for dim in range(rank) if dim not in taken]


def _batch_splits(
    op: Operation, indices: ArraySharding, index_vector_dim: int, own: ArraySharding, window_dims: Sequence[int]
) -> list[Split]:
    """The splits of the dims along which there are many indices; equal for the indices and the result (or updates)."""
    of_indices = [split for dim, split in enumerate(indices.dims) if dim != index_vector_dim]
    of_own = [split for dim, split in enumerate(own.dims) if dim not in window_dims]
    require(of_indices == of_own, op, "indices and their values are split differently")
    if index_vector_dim < len(indices.dims):
        require(not indices.dims[index_vector_dim], op, "the index vector is split")
    return of_indices


def _indexed_dims(
    op: Operation, operand: Value, sharding: ArraySharding, start_map: Sequence[int], collapsed: Sequence[int]
) -> list[_IndexedDim]:
    shape = mlir.tensor_shape(operand)
    result = []
    for dim in collapsed:
        if sharding.dims[dim]:
            require(dim in start_map, op, f"dim {dim} is split and not indexed")
            result.append(_IndexedDim(list(start_map).index(dim), sharding.dims[dim], shape[dim]))
    return result


@handles("stablehlo.gather")
def _gather(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    table, indices = op.operands
    own, result = ctx.sharding(table), shardings[0]
    local = mlir.tensor_shape(table)
    sizes = mlir.int_array(op, "slice_sizes")
    collapsed, batching = list(numbers.collapsed_slice_dims), list(numbers.operand_batching_dims)
    for dim, offset_dim in zip(_window_dims(len(local), collapsed, batching), numbers.offset_dims, strict=True):
        whole = sizes[dim] == local[dim] * own.num_shards(dim)
        require(whole or not own.dims[dim], op, f"dim {dim} is split and not taken whole")
        require(own.dims[dim] == result.dims[offset_dim], op, "operand and result are split differently")
        if whole:
            sizes[dim] = local[dim]
    _batch_splits(op, ctx.sharding(indices), numbers.index_vector_dim, result, list(numbers.offset_dims))
    for dim, indices_dim in zip(batching, numbers.start_indices_batching_dims, strict=True):
        require(own.dims[dim] == ctx.sharding(indices).dims[indices_dim], op, "batch dims are split differently")
    indexed = _indexed_dims(op, table, own, numbers.start_index_map, collapsed)
    mlir.set_int_array(op, "slice_sizes", sizes)
    if not indexed:
        localize_results(ctx, op, shardings)
        return
    axes = [axis for dim in indexed for axis in dim.axes]
    local_result = ctx.local_type(op.results[0].type, result)
    batch_dims = [dim for dim in range(len(result.dims)) if dim not in numbers.offset_dims]
    with ir.InsertionPoint(op), op.location:
        moved, inside = _local_indices(ctx, indices, numbers.index_vector_dim, indexed, clamp=True)
        attributes = {name: op.attributes[name] for name in ("dimension_numbers", "indices_are_sorted", "slice_sizes")}
        found = mlir.create("stablehlo.gather", [local_result], [table, moved], attributes).results[0]
        zeros = constant(np.zeros(local_result.shape, dtype_of(found)))
        mask = broadcast(inside, local_result.shape, batch_dims)
        masked = stablehlo.select(mask, found, zeros)
    ctx.replace(op, masked)
    ctx.mark_partial(masked, axes, "add")


def _local_indices(
    ctx: LocalContext, indices: Value, index_vector_dim: int, indexed: Sequence[_IndexedDim], *, clamp: bool
) -> tuple[Value, Value]:
    """Indices into this device's part, and (without the index vector dim) whether each of them is in it.

    With `clamp` a global index outside the array first becomes the nearest one inside, as gather defines it. Without
    it, an index outside this device's part becomes one that a scatter skips.
    """
    shape = list(mlir.tensor_shape(indices))
    vector_length = shape[index_vector_dim] if index_vector_dim < len(shape) else 1
    dtype = dtype_of(indices)
    # Clamped in their own type before they become i32: gather takes the nearest element for an index outside, and a
    # scatter's stays outside, on the next place before or after.
    lows = np.full(vector_length, np.iinfo(np.int32).min // 2, np.int64)
    highs = np.full(vector_length, np.iinfo(np.int32).max // 2, np.int64)
    beyond = 0 if clamp else 1
    offset = constant(np.zeros(vector_length, np.int32))
    for dim in indexed:
        parts = int(np.prod([axis.size for axis in dim.axes]))
        lows[dim.component], highs[dim.component] = -beyond, dim.local_size * parts - 1 + beyond
        unit = np.zeros(vector_length, np.int32)
        unit[dim.component] = 1
        start = broadcast(ctx.offset(dim.axes, dim.local_size), [vector_length])
        offset = stablehlo.add(offset, stablehlo.multiply(start, constant(unit)))
    place = [index_vector_dim] if index_vector_dim < len(shape) else []

    def along_vector(vector: Value) -> Value:
        return broadcast(vector if place else reshaped(vector, []), shape, place)

    low, high = (
        along_vector(constant(np.clip(bounds, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)))
        for bounds in (lows, highs)
    )
    current = converted(stablehlo.clamp(low, indices, high), ir.IntegerType.get_signless(32))
    current = stablehlo.subtract(current, along_vector(offset))
    inside = _inside(current, index_vector_dim, indexed)
    if not clamp:
        # A scatter skips an index outside; a negative number would do as well, but not for unsigned indices.
        outside = along_vector(constant(np.full(vector_length, np.iinfo(np.int32).max // 2, np.int32)))
        vector_dims = [dim for dim in range(len(shape)) if dim != index_vector_dim]
        current = stablehlo.select(broadcast(inside, shape, vector_dims), current, outside)
    return current, inside


def _inside(indices: Value, index_vector_dim: int, indexed: Sequence[_IndexedDim]) -> Value:
    shape = list(mlir.tensor_shape(indices))
    batch_shape = [size for dim, size in enumerate(shape) if dim != index_vector_dim]
    result = constant(np.ones(batch_shape, np.bool_))
    for dim in indexed:
        component = indices
        if index_vector_dim < len(shape):
            starts, limits = [0] * len(shape), list(shape)
            starts[index_vector_dim], limits[index_vector_dim] = dim.component, dim.component + 1
            component = reshaped(stablehlo.slice(indices, starts, limits, [1] * len(shape)), batch_shape)
        low = compare(component, constant(np.zeros(batch_shape, np.int32)), "GE")
        high = compare(component, constant(np.full(batch_shape, dim.local_size, np.int32)), "LT")
        result = stablehlo.and_(result, stablehlo.and_(low, high))
    return result


@handles("stablehlo.scatter")
def _scatter(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    require(len(op.results) == 1, op, "it scatters into several arrays")
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    target, indices, updates = op.operands
    own, result = ctx.sharding(target), shardings[0]
    of_updates = ctx.sharding(updates)
    require(own.dims == result.dims, op, "operand and result are split differently")
    inserted, batching = list(numbers.inserted_window_dims), list(numbers.input_batching_dims)
    local, update_shape = mlir.tensor_shape(target), mlir.tensor_shape(updates)
    window = _window_dims(len(local), inserted, batching)
    for dim, update_dim in zip(window, numbers.update_window_dims, strict=True):
        whole = update_shape[update_dim] == local[dim]
        require(own.dims[dim] == of_updates.dims[update_dim], op, "operand and updates are split differently")
        require(whole or not own.dims[dim], op, f"dim {dim} is split and not updated whole")
    scattered = _batch_splits(
        op, ctx.sharding(indices), numbers.index_vector_dim, of_updates, list(numbers.update_window_dims)
    )
    batched: list[Split] = []
    for dim, indices_dim in zip(batching, numbers.scatter_indices_batching_dims, strict=True):
        require(own.dims[dim] == ctx.sharding(indices).dims[indices_dim], op, "batch dims are split differently")
        batched.append(own.dims[dim])
    axes = [axis for split in scattered if split not in batched or not split for axis in split]
    indexed = _indexed_dims(op, target, own, numbers.scattered_dims_to_operand_dims, inserted)
    if indexed:
        # XLA's simplifier merges the slice that a single update becomes with the slice that made this device's part,
        # and forgets that an index outside is skipped.
        count = math.prod(n for dim, n in enumerate(mlir.tensor_shape(indices)) if dim != numbers.index_vector_dim)
        require(count > 1, op, "one update of a split dim")
    with ir.InsertionPoint(op), op.location:
        if indexed:
            op.operands[1] = _local_indices(ctx, indices, numbers.index_vector_dim, indexed, clamp=False)[0]
            op.attributes["indices_are_sorted"] = ir.BoolAttr.get(False)
        if axes:
            require(region_reducer(op) == "add", op, "updates that are split are only summed")
            if not is_zero(target):
                op.operands[0] = ctx.on_first(target, axes)
    localize_results(ctx, op, shardings)
    ctx.mark_partial(op.results[0], axes, "add")
