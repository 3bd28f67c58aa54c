"""Sum over devices once where sums over devices are added: all_reduce(a) + all_reduce(b) becomes all_reduce(a + b).

Shardy inserts an all-reduce behind each contraction whose result is a partial sum, also where the results of several
are added: the gradient of an activation that goes through two branches, or into query, key and value. XLA communicates
once there. Input: one device's program. Invariant: every value of the program stays the same up to rounding.
"""

from typing import Any

import numpy as np
from jaxlib.mlir import ir

from alpa_on_jax.xla_extension import mlir
from alpa_on_jax.xla_extension.mlir import Operation
from alpa_on_jax.xla_extension.partition.interface import Collective
from alpa_on_jax.xla_extension.partition.local_context import size_bytes
from alpa_on_jax.xla_extension.partition.local_contractions import region_reducer

_ALL_REDUCE = "stablehlo.all_reduce"


def merge_sums(block: Any) -> list[Collective]:
    """Merge all-reduces in `block`, in place, and return those that have become unnecessary."""
    unnecessary = []
    for op in mlir.block_operations(block):
        if op.name != "stablehlo.add":
            continue
        left, right = (mlir.defining_op(operand) for operand in op.operands)
        if left is None or right is None or left == right or not _same_sum(left, right):
            continue
        with ir.InsertionPoint(op), op.location:
            parts = mlir.create("stablehlo.add", [op.results[0].type], [left.operands[0], right.operands[0]])
        right.operands[0] = parts.results[0]
        right.move_before(op)
        op.results[0].replace_all_uses_with(right.results[0])
        op.erase()
        left.erase()
        group_size = np.array(ir.DenseElementsAttr(right.attributes["replica_groups"])).shape[1]
        unnecessary.append(Collective("all-reduce", size_bytes(parts.results[0]), group_size))
    return unnecessary


def _same_sum(left: Operation, right: Operation) -> bool:
    """Whether both are sums over the same devices of which nothing but their sum is used."""
    return all(
        op.name == _ALL_REDUCE
        and len(op.operands) == 1
        and len(mlir.users(op.results[0])) == 1
        and region_reducer(op) == "add"
        and op.attributes["replica_groups"] == left.attributes["replica_groups"]
        for op in (left, right)
    )
