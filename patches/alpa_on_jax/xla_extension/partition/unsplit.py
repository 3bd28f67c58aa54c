"""Gather the dims along which an op works, where Shardy would leave them split.

Shardy's passes insert no communication for an op that moves elements along a dim (`slice`, `concatenate`, `pad`, ...)
or that has no rule for it (an argmax), so `localize` refuses these when the dim is split. XLA's partitioner exchanges
just the elements that are needed, so it is the better choice for such a program, unless its gradients' reductions have
to be moved. Then this pass makes the dims whole around these ops. Invariant: only shardings of values change.
"""

from collections.abc import Callable

import numpy as np
from jaxlib.mlir import ir

from alpa_on_jax.xla_extension import annotations, mlir
from alpa_on_jax.xla_extension.mlir import Operation, Value
from alpa_on_jax.xla_extension.sharding import ArraySharding, LogicalMesh

Dims = set[int]


def make_worked_dims_whole(main: Operation, mesh: LogicalMesh) -> None:
    """Reshard around every op of `main` that works along a split dim."""
    shardings = dict(zip(mlir.entry_block(main).arguments, annotations.boundary(main, mesh)[0], strict=True))
    for op in mlir.block_operations(mlir.entry_block(main)):
        results = annotations.result_shardings(op, mesh)
        if op.name in _WORKED_DIMS:
            dims = _WORKED_DIMS[op.name](op)
            _gather_operands(op, mesh, shardings, dims)
            if op.name != "stablehlo.reduce":  # a reduced dim is not a dim of the result
                results = [sharding.without_dims(dims) for sharding in results]
                annotations.set_result_shardings(op, results)
        shardings.update(zip(op.results, results, strict=True))


def _gather_operands(op: Operation, mesh: LogicalMesh, shardings: dict[Value, ArraySharding], dims: Dims) -> None:
    rank = max(mlir.tensor_type(operand).rank for operand in op.operands)
    for i, operand in enumerate(op.operands):
        own = shardings.get(operand)
        if own is None or len(own.dims) != rank or not any(own.dims[dim] for dim in dims):
            continue
        whole = own.without_dims(dims)
        with ir.InsertionPoint(op), op.location:
            reshard = mlir.create(
                "sdy.reshard", [operand.type], [operand], {"sharding": ir.Attribute.parse(whole.to_sdy())}
            )
        op.operands[i] = reshard.results[0]
        shardings[reshard.results[0]] = whole


def _changed_dims(op: Operation) -> Dims:
    before, after = mlir.tensor_shape(op.operands[0]), mlir.tensor_shape(op.results[0])
    return {dim for dim, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}


def _updated_dims(op: Operation) -> Dims:
    whole, part = mlir.tensor_shape(op.operands[0]), mlir.tensor_shape(op.operands[1])
    return {dim for dim, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b}


def padded_dims(op: Operation) -> Dims:
    """The dims along which a pad does something."""
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    return {dim for name in names for dim, amount in enumerate(mlir.int_array(op, name)) if amount}


def windowed_dims(op: Operation) -> Dims:
    """The dims along which the window of a pooling, or of its gradient, moves or pads."""
    window = mlir.int_array(op, "window_dimensions")
    dims = {dim for dim, size in enumerate(window) if size != 1}
    for name in ("window_strides", "base_dilations", "window_dilations"):
        if name in op.attributes:
            dims |= {dim for dim, step in enumerate(mlir.int_array(op, name)) if step != 1}
    if "padding" in op.attributes:
        padding = np.array(ir.DenseElementsAttr(op.attributes["padding"])).reshape(-1, 2)
        dims |= {dim for dim in range(len(window)) if padding[dim].any()}
    return dims


def _one_dim(name: str) -> Callable[[Operation], Dims]:
    return lambda op: {mlir.integer(op, name)}


def _argument_reduced_dims(op: Operation) -> Dims:
    """The reduced dims of a reduction of several arrays (an argmax); a plain one can stay split."""
    return set(mlir.int_array(op, "dimensions")) if len(op.results) > 1 else set()


_WORKED_DIMS: dict[str, Callable[[Operation], Dims]] = {
    "stablehlo.slice": _changed_dims,
    "stablehlo.dynamic_slice": _changed_dims,
    "stablehlo.dynamic_update_slice": _updated_dims,
    "stablehlo.pad": padded_dims,
    "stablehlo.concatenate": _one_dim("dimension"),
    "stablehlo.sort": _one_dim("dimension"),
    "stablehlo.reverse": lambda op: set(mlir.int_array(op, "dimensions")),
    "stablehlo.reduce_window": windowed_dims,
    "stablehlo.select_and_scatter": windowed_dims,
    "stablehlo.reduce": _argument_reduced_dims,
}
