"""From a global op to one device's op: elementwise and structural ops.

Each handler takes a global op whose operands are already local and whose results have known shardings, and edits it so
that it computes one device's part of the result. Invariant: after a handler, gluing the devices' results together as
the sharding says gives the global op's result, or the handler has raised UnsupportedByShardyError and the program is
left to XLA's partitioner.
"""

from collections.abc import Callable, Iterable, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir, random_ops
from alpa_cfp.spmd.ir.builders import broadcast, converted
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import WORKED_DIMS, batch_dims
from alpa_cfp.spmd.module.partitioned import UnsupportedByShardyError
from alpa_cfp.spmd.partition.local_context import LocalContext
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis

Handler = Callable[[LocalContext, Operation, list[ArraySharding]], None]
HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for the ops `names`."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


def require(condition: bool, op: Operation, why: str) -> None:
    """Raises UnsupportedByShardyError unless `condition` holds."""
    if not condition:
        raise UnsupportedByShardyError(f"{op.name}: {why}")


def localize_results(ctx: LocalContext, op: Operation, shardings: Iterable[ArraySharding]) -> None:
    """Give the results of `op` the types of one device's parts."""
    for result, sharding in zip(op.results, shardings, strict=True):
        ctx.localize(result, sharding)


def require_equal(ctx: LocalContext, op: Operation, value: Value, sharding: ArraySharding) -> None:
    """Raises UnsupportedByShardyError unless `value` is split as `sharding` says."""
    require(ctx.sharding(value).dims == sharding.dims, op, "operand and result are split differently")


def require_unsplit(ctx: LocalContext, op: Operation, value: Value, dims: Iterable[int]) -> None:
    """Raises UnsupportedByShardyError where one of `dims` of `value` is split."""
    sharding = ctx.sharding(value)
    for dim in dims:
        require(not sharding.dims[dim], op, f"dim {dim}, along which it works, is split")


def elementwise(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    """An op that computes each element from the elements at the same place; scalars go with any sharding."""
    (sharding,) = shardings
    for operand in op.operands:
        own = ctx.sharding(operand)
        require(own.dims == sharding.dims or not own.dims, op, "operand and result are split differently")
    require(
        op.name != "stablehlo.bitcast_convert" or len(op.operands[0].type.shape) == len(sharding.dims),
        op,
        "it changes the rank",
    )
    localize_results(ctx, op, shardings)


@handles("stablehlo.optimization_barrier")
def _barrier(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    for operand, sharding in zip(op.operands, shardings, strict=True):
        require(ctx.sharding(operand).dims == sharding.dims, op, "it would reshard")
    localize_results(ctx, op, shardings)


@handles("stablehlo.constant", "sdy.constant")
def _constant(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    (sharding,) = shardings
    value = ir.DenseElementsAttr(op.attributes["value"])
    with ir.InsertionPoint(op), op.location:
        if value.is_splat:
            local = ctx.local_type(op.results[0].type, sharding)
            new = stablehlo.constant(ir.DenseElementsAttr.get_splat(local, value.get_splat_value()))
        else:
            new = slice_part(ctx, stablehlo.constant(value), sharding.dims)
    ctx.replace(op, new)


def slice_part(ctx: LocalContext, value: Value, split: Sequence[Sequence[Axis]]) -> Value:
    """This device's part of `value`, with each dim cut along the mesh axes given for it in `split`."""
    if not any(split):
        return value
    local = list(ctx.local_shape(mlir.tensor_shape(value), ArraySharding(ctx.mesh, tuple(map(tuple, split)))))
    starts = [ctx.offset(axes, size) for axes, size in zip(split, local, strict=True)]
    return stablehlo.dynamic_slice(value, starts, local)


@handles("stablehlo.iota")
def _iota(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    (sharding,) = shardings
    dim = mlir.integer(op, "iota_dimension")
    axes = sharding.dims[dim]
    if not axes:
        localize_results(ctx, op, shardings)
        return
    local = ctx.local_type(op.results[0].type, sharding)
    # Counted in i32 and converted then: a narrow float would round the count and the start apart from each other.
    counted = ir.RankedTensorType.get(local.shape, ir.IntegerType.get_signless(32))
    with ir.InsertionPoint(op), op.location:
        count = stablehlo.iota(counted, dim)
        start = broadcast(ctx.offset(axes, local.shape[dim]), local.shape)
        shifted = converted(stablehlo.add(count, start), local.element_type)
    ctx.replace(op, shifted)


@handles("stablehlo.broadcast_in_dim")
def _broadcast_in_dim(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    (sharding,) = shardings
    operand = ctx.sharding(op.operands[0])
    shape = mlir.tensor_shape(op.operands[0])
    result_shape = mlir.tensor_shape(op.results[0])
    for dim, result_dim in enumerate(mlir.int_array(op, "broadcast_dimensions")):
        expanded = shape[dim] == 1 and not operand.dims[dim] and result_shape[result_dim] != 1
        require(
            expanded or operand.dims[dim] == sharding.dims[result_dim], op, "operand and result are split differently"
        )
    localize_results(ctx, op, shardings)


@handles("stablehlo.transpose")
def _transpose(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    operand = ctx.sharding(op.operands[0])
    permuted = tuple(operand.dims[dim] for dim in mlir.int_array(op, "permutation"))
    require(permuted == shardings[0].dims, op, "operand and result are split differently")
    localize_results(ctx, op, shardings)


@handles("stablehlo.reshape")
def _reshape(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    operand = ctx.sharding(op.operands[0])
    local_operand = mlir.tensor_shape(op.operands[0])
    global_operand = [size * operand.num_shards(dim) for dim, size in enumerate(local_operand)]
    global_result = mlir.tensor_shape(op.results[0])
    for in_dims, out_dims in _reshape_groups(global_operand, global_result):
        chunk = _contiguous_axes(op, operand, global_operand, in_dims)
        require(
            chunk == _contiguous_axes(op, shardings[0], global_result, out_dims),
            op,
            "operand and result are split differently",
        )
    localize_results(ctx, op, shardings)


def _reshape_groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The smallest groups of neighbouring dims of equal product on both sides."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        ins, outs = [], []
        size_in = size_out = 1
        while True:
            if size_in <= size_out and i < len(before) and (size_in < size_out or not ins):
                size_in *= before[i]
                ins.append(i)
                i += 1
            elif j < len(after) and (size_out < size_in or not outs):
                size_out *= after[j]
                outs.append(j)
                j += 1
            else:
                break
        groups.append((ins, outs))
    return groups


def _contiguous_axes(op: Operation, sharding: ArraySharding, shape: Sequence[int], dims: Sequence[int]) -> list[Axis]:
    """The axes that split `dims`, where they cut the dims' joint index into contiguous chunks."""
    axes: list[Axis] = []
    closed = False
    for dim in dims:
        require(not (closed and sharding.dims[dim]), op, "a dim that is not the major one of its group is split")
        axes += sharding.dims[dim]
        closed = closed or shape[dim] != sharding.num_shards(dim)
    return axes


@handles("stablehlo.slice")
def _slice(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    operand = ctx.sharding(op.operands[0])
    local = mlir.tensor_shape(op.operands[0])
    limits = mlir.int_array(op, "limit_indices")
    for dim, result_size in enumerate(mlir.tensor_shape(op.results[0])):
        if result_size == local[dim] * operand.num_shards(dim):
            limits[dim] = local[dim]
        else:
            require_unsplit(ctx, op, op.operands[0], [dim])
    require_equal(ctx, op, op.operands[0], shardings[0])
    mlir.set_int_array(op, "limit_indices", limits)
    localize_results(ctx, op, shardings)


@handles("stablehlo.dynamic_slice")
def _dynamic_slice(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    operand = ctx.sharding(op.operands[0])
    sizes = mlir.int_array(op, "slice_sizes")
    local = mlir.tensor_shape(op.operands[0])
    for dim, size in enumerate(sizes):
        if operand.dims[dim]:
            require(size == local[dim] * operand.num_shards(dim), op, f"dim {dim} is split and not taken whole")
            sizes[dim] = local[dim]
    require_equal(ctx, op, op.operands[0], shardings[0])
    mlir.set_int_array(op, "slice_sizes", sizes)
    localize_results(ctx, op, shardings)


@handles("stablehlo.dynamic_update_slice")
def _dynamic_update_slice(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    operand, update = (ctx.sharding(op.operands[i]) for i in (0, 1))
    for dim, (whole, part) in enumerate(
        zip(mlir.tensor_shape(op.operands[0]), mlir.tensor_shape(op.operands[1]), strict=True)
    ):
        if operand.dims[dim] or update.dims[dim]:
            require(
                operand.dims[dim] == update.dims[dim] and whole == part, op, f"dim {dim} is split and not set whole"
            )
    require_equal(ctx, op, op.operands[0], shardings[0])
    localize_results(ctx, op, shardings)


@handles(
    *("stablehlo.pad", "stablehlo.concatenate", "stablehlo.reverse", "stablehlo.sort"),
    *("stablehlo.reduce_window", "stablehlo.select_and_scatter", "stablehlo.fft", "chlo.top_k"),
)
def _along_dims(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    """Ops that work along dims, which have to be whole; their attributes name these, whatever the sizes are."""
    require(all(sharding == shardings[0] for sharding in shardings), op, "its results are split differently")
    dims = sorted(WORKED_DIMS[op.name](op))
    for operand in op.operands:
        if mlir.tensor_type(operand).rank == len(shardings[0].dims):
            require_unsplit(ctx, op, operand, dims)
            require_equal(ctx, op, operand, shardings[0])
    localize_results(ctx, op, shardings)


@handles("stablehlo.rng")
def _rng(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    """Random numbers: every device draws those of its own part, so devices that hold the same part agree."""
    (sharding,) = shardings
    local = ctx.local_type(op.results[0].type, sharding)
    with ir.InsertionPoint(op), op.location:
        offsets = [ctx.offset(axes, size) for axes, size in zip(sharding.dims, local.shape, strict=True)]
        drawn = random_ops.draw(op, ctx.random_state, next(ctx.random_op_numbers), local, offsets)
    ctx.replace(op, drawn)


@handles("stablehlo.custom_call", "stablehlo.rng_bit_generator")
def whole_on_every_device(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    """Ops that are only taken where every device computes the whole of them, or its part of a batch."""
    side_effect = "has_side_effect" in op.attributes and ir.BoolAttr(op.attributes["has_side_effect"]).value
    require(not side_effect, op, "it has side effects")
    if (count := batch_dims(op)) is not None:
        _part_of_batch(ctx, op, shardings, count)
        return
    for nested in mlir.inner_operations(op):
        if nested.name == "sdy.constant":
            annotations.make_plain_constant(nested)
    require(is_whole(ctx, op, shardings), op, "it is split over devices")
    for nested in mlir.inner_operations(op):
        require(not nested.name.startswith("sdy."), op, f"{nested.name} is inside")
        require(nested.name != "stablehlo.rng", op, "it draws random numbers")
    localize_results(ctx, op, shardings)


def _part_of_batch(ctx: LocalContext, op: Operation, shardings: list[ArraySharding], count: int) -> None:
    """A decomposition or a solve: split along the dims of the batch, by all arrays alike, and along no other."""
    arrays = [*map(ctx.sharding, op.operands), *shardings]
    for sharding in arrays:
        require(not any(sharding.dims[count:]), op, "a dim along which it works is split")
        require(sharding.dims[:count] == arrays[0].dims[:count], op, "operand and result are split differently")
    localize_results(ctx, op, shardings)


def is_whole(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> bool:
    """Whether nothing is split that an op uses, computes in its regions or gives."""
    inner = mlir.inner_operations(op)
    used = [ctx.known_sharding(operand) for operand in mlir.operands_deep(op)]
    made = [sharding for nested in inner for sharding in annotations.result_shardings(nested, ctx.mesh)]
    return all(sharding.is_replicated for sharding in (*shardings, *made, *used) if sharding is not None)
