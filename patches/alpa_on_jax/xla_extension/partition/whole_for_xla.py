"""Keep XLA's own partitioner from splitting dims along which it computes an op wrongly, or ends the process.

Takes the function that is left to XLA; puts a constraint around each such op that keeps the dims it works along whole
and leaves the others to propagation. Invariant: the function computes what it did. Each kind of op here was seen to be
wrong, or to end the process, with jaxlib 0.10.2 and 0.11.2, on whole numbers, when the dims were split:

- windows (a convolution's spatial dims and groups, pooling and its gradient) come out wrong;
- a pad that cuts off at an edge, or spreads elements out, ends the process, as does a gather by bytes;
- a reduction of a kind that no collective makes is UNIMPLEMENTED, or ends the process (see `reducers`).
"""

from collections.abc import Callable
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_on_jax.xla_extension import mlir
from alpa_on_jax.xla_extension.mlir import Operation, Value
from alpa_on_jax.xla_extension.partition.unsplit import Dims, padded_dims, windowed_dims
from alpa_on_jax.xla_extension.reducers import is_made_over_devices

# The dims that have to be whole, of each operand and of each result.
WholeDims = tuple[list[Dims], list[Dims]]


def make_whole_for_xla(main: Operation) -> None:
    """Constrain what XLA would not partition rightly, in place."""
    for op in list(mlir.walk(mlir.entry_block(main))):
        if op.name in _WHOLE_DIMS:
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
    rank = mlir.tensor_type(value).rank
    text = ", ".join("{}" if dim in dims else "{?}" for dim in range(rank))
    sharding = ir.Attribute.parse(f"#sdy.sharding<@{mlir.MESH_SYMBOL}, [{text}]>")
    return mlir.create("sdy.sharding_constraint", [value.type], [value], {"sharding": sharding}).results[0]


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
    wide: Any = ir.RankedTensorType.get(tensor.shape, ir.IntegerType.get_signless(32))
    with ir.InsertionPoint(op), op.location:
        op.operands[place] = mlir.create("stablehlo.convert", [wide], [op.operands[place]]).results[0]
