"""Keep XLA's own partitioner from splitting dims along which it computes an op wrongly, or ends the process.

Takes the function that is left to XLA, and the known shardings of its values; puts a constraint around each such
op that keeps the dims it works along whole and leaves the others to propagation. Invariant: the function computes what
it did. Each kind of op here was seen to be wrong, or to end the process, with jaxlib 0.10.2 and 0.11.2, on whole
numbers, when the dims were split:

- windows (a convolution's spatial dims and groups, pooling and its gradient) come out wrong;
- a product that sums over several dims comes out wrong where its sides are split along these in different ways;
- a slice of a split dim that its parts do not divide ends in a program that XLA's own verifier refuses;
- a pad that cuts off at an edge, or spreads elements out, ends the process, as does a gather by bytes;
- a reduction of a kind that no collective makes is UNIMPLEMENTED, or ends the process (see `op_kinds`).
"""

from collections.abc import Callable, Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import converted
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import Dims, changed_dims, is_made_over_devices, padded_dims, windowed_dims
from alpa_cfp.spmd.shardings.sharding import ArraySharding, axes_text

# The dims that have to be whole, of each operand and of each result.
WholeDims = tuple[list[Dims], list[Dims]]
Shardings = Mapping[Value, ArraySharding]


def make_whole_for_xla(main: Operation, shardings: Shardings) -> None:
    """Constrain what XLA would not partition rightly, in place.

    Args:
        main: The function.
        shardings: Those of its arguments and its ops' results; a value without one may be sharded in any way.
    """
    for op in mlir.inner_operations(main):
        if op.name == "stablehlo.dot_general":
            _split_sides_alike(op, shardings)
        elif op.name == "stablehlo.slice":
            _divide_slice(op, shardings)
        elif op.name in _WHOLE_DIMS:
            operands, results = _WHOLE_DIMS[op.name](op)
            for position, dims in enumerate(operands):
                if dims:
                    with ir.InsertionPoint(op), op.location:
                        op.operands[position] = _whole(op.operands[position], dims)
            for result, dims in zip(op.results, results, strict=True):
                if dims:
                    with ir.InsertionPoint.after(op), op.location:
                        whole = _whole(result, dims)
                    result.replace_all_uses_except(whole, mlir.defining_op(whole))
        elif op.name in _INDEXING:
            _widen_indices(op)


def _whole(value: Value, dims: Dims) -> Value:
    """`value` with these dims whole, and the others as propagation finds them."""
    return _constrained(value, ["{}" if dim in dims else "{?}" for dim in range(mlir.tensor_type(value).rank)])


def _constrained(value: Value, splits: Sequence[str]) -> Value:
    """`value` with its dims split as Shardy's texts say."""
    sharding = ir.Attribute.parse(f"#sdy.sharding<@{mlir.MESH_SYMBOL}, [{', '.join(splits)}]>")
    return sdy.sharding_constraint(value, sharding)


def _split_sides_alike(op: Operation, shardings: Shardings) -> None:
    """Shard the right side along the summed dims as the left one; along none where that is not known."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    summed = list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)
    if len(summed[0]) < 2:
        return
    known = [shardings.get(operand) for operand in op.operands]
    left, right = (
        None if sharding is None else [sharding.dims[dim] for dim in dims]
        for sharding, dims in zip(known, summed, strict=True)
    )
    if left is not None and left == right:
        return
    for position, dims in enumerate(summed):
        rank = mlir.tensor_type(op.operands[position]).rank
        splits: list[str] = ["{?}"] * rank
        for number, dim in enumerate(dims):
            splits[dim] = "{}" if known[0] is None or left is None else axes_text(known[0].mesh, left[number])
        with ir.InsertionPoint(op), op.location:
            op.operands[position] = _constrained(op.operands[position], splits)


def _divide_slice(op: Operation, shardings: Shardings) -> None:
    """Gather the dims of what is sliced whose parts do not divide the slice."""
    sharding = shardings.get(op.operands[0])
    sizes = mlir.tensor_shape(op.results[0])
    dims = {
        dim
        for dim in changed_dims(op.operands[0], op.results[0])
        if sharding is None or sizes[dim] % sharding.num_shards(dim)
    }
    if dims:
        with ir.InsertionPoint(op), op.location:
            op.operands[0] = _whole(op.operands[0], dims)


def _of_reduction(op: Operation) -> WholeDims:
    count = len(op.results)
    dims = set() if is_made_over_devices(op) else set(mlir.int_array(op, "dimensions"))
    return [dims] * count + [set()] * count, [set()] * count


def _of_window(op: Operation) -> WholeDims:
    dims = windowed_dims(op)
    arrays = [dims if mlir.tensor_type(operand).rank else set() for operand in op.operands]
    return arrays, [dims] * len(op.results)


def _of_pad(op: Operation) -> WholeDims:
    low, high, interior = (
        mlir.int_array(op, name) for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    dims = {dim for dim in padded_dims(op) if low[dim] < 0 or high[dim] < 0 or interior[dim]}
    return [dims, set()], [dims]


def _of_convolution(op: Operation) -> WholeDims:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    image: Dims = set(numbers.input_spatial_dimensions)
    kernel: Dims = set(numbers.kernel_spatial_dimensions)
    result: Dims = set(numbers.output_spatial_dimensions)
    if mlir.integer(op, "feature_group_count") > 1:
        image |= {numbers.input_feature_dimension}
        kernel |= {numbers.kernel_input_feature_dimension, numbers.kernel_output_feature_dimension}
        result |= {numbers.output_feature_dimension}
    if mlir.integer(op, "batch_group_count") > 1:
        # Also what is summed over, which in a gradient is the batch: XLA sums it twice.
        image, kernel, result = (_all_dims(value) for value in (*op.operands, *op.results))
    return [image, kernel], [result]


def _all_dims(value: Value) -> Dims:
    return set(range(mlir.tensor_type(value).rank))


_WHOLE_DIMS: dict[str, Callable[[Operation], WholeDims]] = {
    "stablehlo.reduce": _of_reduction,
    "stablehlo.reduce_window": _of_window,
    "stablehlo.select_and_scatter": _of_window,
    "stablehlo.pad": _of_pad,
    "stablehlo.convolution": _of_convolution,
}

_INDEXING = ("stablehlo.gather", "stablehlo.scatter")


def _widen_indices(op: Operation) -> None:
    """Let a gather or scatter count in 32 bits."""
    place = len(op.results) if op.name == "stablehlo.scatter" else 1
    tensor = mlir.tensor_type(op.operands[place])
    if ir.IntegerType(tensor.element_type).width >= 32:
        return
    with ir.InsertionPoint(op), op.location:
        op.operands[place] = converted(op.operands[place], ir.IntegerType.get_signless(32))
