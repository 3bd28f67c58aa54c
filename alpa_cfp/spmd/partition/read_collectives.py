"""The communication in one device's program, as it will be compiled.

Takes the block of a program after `localize`, gives a `Collective` for each communication op, in program order.
Invariant: `size_bytes` is that of all operands of one device.
"""

import math
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.element_types import numpy_dtype
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.module.partitioned import Collective

_KINDS = {
    f"stablehlo.{kind.replace('-', '_')}": kind
    for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
}


def collectives_of_block(block: Any) -> tuple[Collective, ...]:
    """The communication ops of `block`."""
    return tuple(_read(op) for op in mlir.block_operations(block) if op.name in _KINDS)


def size_bytes(value: Value) -> int:
    """The size of one device's part of `value`."""
    tensor = mlir.tensor_type(value)
    return math.prod(tensor.shape) * np.dtype(numpy_dtype(tensor.element_type)).itemsize


def group_size(op: Operation) -> int:
    """How many devices take part together in a collective with replica groups."""
    return np.array(ir.DenseElementsAttr(op.attributes["replica_groups"])).shape[1]


def _read(op: Operation) -> Collective:
    # A permutation has a sender and a receiver instead of groups.
    size = group_size(op) if "replica_groups" in op.attributes else 2
    return Collective(_KINDS[op.name], sum(map(size_bytes, op.operands)), size)
