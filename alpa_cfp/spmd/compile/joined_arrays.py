"""On CPUs a collective of several arrays waits for all devices once for each array: the small ones are made one.

Takes a module that is about to be compiled, with one device's program; the small arrays of each all-reduce and
all-gather are copied into one array of one dim, and out of its result. XLA on CPUs runs a collective of n arrays as n
collectives, one after the other, for each of which a thread for each device waits for the others
(`xla/backends/cpu/runtime/all_reduce_thunk.cc`); NCCL starts them as one. Invariants: the same values; an array that
takes longer to copy than a collective is left alone.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import reshaped, typed
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import region_reducer
from alpa_cfp.spmd.module.partitioned import group_size, is_small

_ALL_REDUCE, _ALL_GATHER = "stablehlo.all_reduce", "stablehlo.all_gather"


def join_small_arrays(module: Any) -> None:
    """Join the small arrays of collectives, in place."""
    for op, small in _joined(module):
        with ir.InsertionPoint(op), op.location:
            _join(op, small)


def is_joined(module: Any) -> bool:
    """Whether `join_small_arrays` changes a module."""
    return bool(_joined(module))


def _joined(module: Any) -> list[tuple[Operation, list[int]]]:
    """The collectives that have several small arrays of one element type, and the numbers of these."""
    found: list[tuple[Operation, list[int]]] = []
    for op in mlir.all_operations(module):
        if (op.name == _ALL_REDUCE and region_reducer(op) is not None) or op.name == _ALL_GATHER:
            alike: dict[str, list[int]] = {}
            for i, operand in enumerate(op.operands):
                if is_small(operand) and _is_row(op, operand):
                    alike.setdefault(str(mlir.tensor_type(operand).element_type), []).append(i)
            small = max(alike.values(), key=len, default=[])
            if len(small) > 1:
                found.append((op, small))
    return found


def _is_row(op: Operation, operand: Value) -> bool:
    """Whether an array can be a part of a longer one: an all-gather has to gather it along its only dim."""
    return op.name == _ALL_REDUCE or mlir.tensor_type(operand).rank == 1


def _join(op: Operation, small: Sequence[int]) -> None:
    """Make one array of some arrays of a collective, which have one element type."""
    large = [i for i in range(len(op.operands)) if i not in small]
    rows = [reshaped(op.operands[i], [math.prod(mlir.tensor_shape(op.operands[i]))]) for i in small]
    widths = [mlir.tensor_shape(row)[0] for row in rows]
    operands = [*(op.operands[i] for i in large), stablehlo.concatenate(rows, 0)]
    count = group_size(op) if op.name == _ALL_GATHER else 1
    types = [op.results[i].type for i in large] + [typed(operands[-1], [count * sum(widths)])]
    reducer = region_reducer(op) if op.name == _ALL_REDUCE else None
    *others, joined = mlir.create(op.name, types, operands, mlir.attributes_of(op), reducer=reducer).results
    parts = reshaped(joined, [count, sum(widths)])
    starts = itertools.accumulate(widths, initial=0)
    own = [
        reshaped(stablehlo.slice(parts, [0, start], [count, start + width], [1, 1]), mlir.tensor_shape(op.results[i]))
        for i, start, width in zip(small, starts, widths, strict=False)
    ]
    for i, value in [*zip(large, others, strict=True), *zip(small, own, strict=True)]:
        op.results[i].replace_all_uses_with(value)
    op.erase()
