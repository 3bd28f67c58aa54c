"""One device's program without its communication: local ops stand in for the collectives.

Takes a partitioned program; gives one that computes as much on each device and waits for no other. A stand-in has the
type of the collective's result: the operand itself, a part of it, or copies of it side by side, behind a barrier, so
that XLA fuses no more than around the collective. Its results are not those of the program: it is only timed. So
strategies that differ only in what they communicate have one time of computing. Invariant: no collective is left.
"""

from dataclasses import replace
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Value
from alpa_cfp.spmd.module.partitioned import KINDS, PartitionedProgram


def without_communication(program: PartitionedProgram) -> PartitionedProgram:
    """Returns the program with stand-ins for its collectives; one that XLA partitions is returned as it is."""
    if program.partitioner != "shardy" or not program.collectives:
        return program

    def change(parsed: Any) -> None:
        for op in mlir.all_operations(parsed):
            if op.name not in KINDS:
                continue
            with ir.InsertionPoint(op), op.location:
                for operand, result in zip(op.operands, op.results, strict=True):
                    result.replace_all_uses_with(_stand_in(operand, mlir.tensor_shape(result)))
            op.erase()

    bytecode, _ = mlir.edit(program.bytecode, change)
    return replace(program, bytecode=bytecode, collectives=())


def _stand_in(operand: Value, shape: tuple[int, ...]) -> Value:
    """A value of a shape that is made of an operand."""
    value: Any = stablehlo.optimization_barrier([operand])
    for dim, size in enumerate(shape):
        own = mlir.tensor_shape(value)
        if size < own[dim]:
            limits = [*own[:dim], size, *own[dim + 1 :]]
            value = stablehlo.slice(value, [0] * len(own), limits, [1] * len(own))
        elif size > own[dim]:
            value = stablehlo.concatenate([value] * (size // own[dim]), dimension=dim)
    return value
