"""Starts of slices that depend on values, clamped where they are used.

Takes a parsed module. A `dynamic_slice` whose start lies too far behind takes the last slice that there is. XLA
(jaxlib 0.10.2, 0.11.2) joins two of them, as there are when a device takes its part of a slice, by adding up starts
that are not clamped, and takes something else. So starts are clamped by an op of their own. Invariant: the same values.
"""

from typing import Any

import numpy as np
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import builders, mlir
from alpa_cfp.spmd.ir.element_types import numpy_dtype
from alpa_cfp.spmd.ir.mlir import Operation

# Where the starts begin among the operands.
_STARTS = {"stablehlo.dynamic_slice": 1, "stablehlo.dynamic_update_slice": 2}


def clamp_starts(module: Any) -> None:
    """Clamp the starts of the slices of `module`, in place; constants are clamped by XLA."""
    for function in mlir.functions(module).values():
        for op in list(mlir.walk(mlir.entry_block(function))):
            if op.name in _STARTS:
                _clamp(op, _STARTS[op.name])


def _clamp(op: Operation, first: int) -> None:
    whole = mlir.tensor_shape(op.operands[0])
    part = mlir.tensor_shape(op.results[0] if first == 1 else op.operands[1])
    for dim, (size, taken) in enumerate(zip(whole, part, strict=True)):
        start = op.operands[first + dim]
        made = mlir.defining_op(start)
        if made is not None and made.name in ("stablehlo.constant", "stablehlo.clamp"):
            continue
        dtype = np.dtype(numpy_dtype(mlir.tensor_type(start).element_type))
        last = min(size - taken, int(np.iinfo(dtype).max))
        with ir.InsertionPoint(op), op.location:
            limits = [builders.constant(np.array(limit, dtype)) for limit in (0, last)]
            clamped = mlir.create("stablehlo.clamp", [start.type], [limits[0], start, limits[1]])
        op.operands[first + dim] = clamped.results[0]
