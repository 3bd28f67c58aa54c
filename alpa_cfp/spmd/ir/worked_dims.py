"""Along which dims an op works that moves elements or looks at several of them: what is split there must move first.

Takes an op; gives dims of its arrays, all of one rank. For some of these Shardy's rules say nothing. Invariant: along
all other dims each device computes its part of the results from its parts of the operands.
"""

from collections.abc import Callable

import numpy as np
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation

Dims = set[int]


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


WORKED_DIMS: dict[str, Callable[[Operation], Dims]] = {
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
