"""The result of partitioning: the program of one device, its communication, and what is left to do across devices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import dtype_of
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import CONTRACTIONS, CONTROL_FLOW
from alpa_cfp.spmd.ir.trip_counts import runs_of
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh


class UnsupportedByShardyError(Exception):
    """A program, or the way in which it is sharded, is not covered by the partitioner made of Shardy's passes."""


class HalfLocalError(UnsupportedByShardyError):
    """The same, found when a part of an op had been changed already, so that nothing else can be made of it."""


# Chosen by five plans of a GPT on CPUs: with 1 MB one step took longer than with each array by itself, with 16 kB less
# was saved (`python -m benchmarks.collectives_in_steps` for this one).
_SMALL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Collective:
    """One communication op of a partitioned program. Those that communicate the same are equal, in whatever arrays.

    Attributes:
        kind: XLA's name: "all-reduce", "all-gather", "reduce-scatter", "all-to-all" or "collective-permute".
        size_bytes: Size of one device's operand.
        group_size: The number of devices that take part together (two in a permutation).
        large_arrays: How many of its arrays are too large to be copied into one.
        small_arrays, small_bytes: How many are not, and what a device has of these where all parts are together.
        is_aside: Whether it can run beside all contractions of the program that come before it or after it, since none
            of one side has to do with it: sums of gradients, and what is gathered of weights.
    """

    kind: str
    size_bytes: int
    group_size: int
    large_arrays: int = field(default=0, compare=False)
    small_arrays: int = field(default=0, compare=False)
    small_bytes: int = field(default=0, compare=False)
    is_aside: bool = field(default=False, compare=False)

    @classmethod
    def of_arrays(cls, kind: str, sizes_bytes: Sequence[int], group_size: int) -> "Collective":
        """The collective of arrays, given the size of one device's part of each."""
        small = [size for size in sizes_bytes if size < _SMALL_BYTES]
        large, size = len(sizes_bytes) - len(small), sum(sizes_bytes)
        if kind not in ("all-reduce", "all-gather"):  # the others have one array
            return cls(kind, size, group_size, large)
        return cls(kind, size, group_size, large, len(small), sum(small) * (group_size if kind == "all-gather" else 1))


# The names of collectives, by those of StableHLO.
KINDS = {
    f"stablehlo.{kind.replace('-', '_')}": kind
    for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
}


# A longer loop counts as one of so many iterations: more change no decision.
_MOST_RUNS = 1 << 12


def collective_ops(block: Any) -> list[Operation]:
    """The communication ops of one device's program in program order, each as often as it runs."""
    return [op for op, runs in runs_of(block) if op.name in KINDS for _ in range(min(runs, _MOST_RUNS))]


def collectives_of_block(block: Any) -> tuple[Collective, ...]:
    """The communication of one device's program as it will be compiled: that of each of `collective_ops`."""
    found = collective_ops(block)
    aside = _aside(mlir.block_operations(block)) if found else frozenset()
    known = {
        op: replace(
            Collective.of_arrays(KINDS[op.name], [size_bytes(operand) for operand in op.operands], group_size(op)),
            is_aside=op in aside,
        )
        for op in found
    }
    return tuple(known[op] for op in found)


def _aside(operations: Sequence[Operation]) -> frozenset[Operation]:
    """The ops that need no contraction's result, or whose results no contraction needs."""
    contracting = {op for op in operations if op.name in CONTRACTIONS or op.name in CONTROL_FLOW}
    behind, needed = set[Value](), set[Value]()
    late, early = set[Operation](), set[Operation]()
    for op in operations:
        if op in contracting or not behind.isdisjoint(mlir.operands_deep(op)):
            behind.update(op.results)
            late.add(op)
    for op in reversed(operations):
        if op in contracting or not needed.isdisjoint(op.results):
            needed.update(mlir.operands_deep(op))
            early.add(op)
    return frozenset(op for op in operations if op not in late or op not in early)


def size_bytes(value: Value) -> int:
    """The size of one device's part of `value`."""
    return math.prod(mlir.tensor_shape(value)) * dtype_of(value).itemsize


def is_small(value: Value) -> bool:
    """Whether it takes less time to copy an array than to communicate once more."""
    return size_bytes(value) < _SMALL_BYTES


def group_size(op: Operation) -> int:
    """The number of devices that take part together in a collective: in a permutation a sender and a receiver."""
    groups = mlir.replica_groups(op)
    return 2 if groups is None else len(groups[0])


@dataclass(frozen=True, slots=True)
class PartitionedProgram:
    """A program that is ready to be compiled.

    Attributes:
        partitioner: Which one made it: "shardy" (the module is one device's program with explicit collectives, to be
            run with one replica a device) or "xla" (the module is the whole program with sharding annotations, which
            XLA partitions while it compiles).
        bytecode: The module.
        mesh: The logical mesh.
        input_shardings, output_shardings: The shardings of the global arrays.
        unreduced_outputs: For each result the mesh axes over which the devices' parts still have to be summed.
        collectives: The communication in the module; empty where the partitioner is "xla", which decides later.
        draws_random: Whether the module has the hidden last parameter for the random state (see `random_ops`).
        fallback_reason: Why Shardy's passes did not make it; empty where they did.
        prediction: Where XLA partitions, what Shardy's passes make of it when each op that they do not cover is
            computed whole on every device. It is read for what devices may do and communicate, and never run. None
            where it was not requested, or cannot be made.
    """

    partitioner: str
    bytecode: bytes = field(repr=False)
    mesh: LogicalMesh
    input_shardings: tuple[ArraySharding, ...]
    output_shardings: tuple[ArraySharding, ...]
    unreduced_outputs: tuple[tuple[Axis, ...], ...]
    collectives: tuple[Collective, ...] = ()
    draws_random: bool = False
    fallback_reason: str = ""
    prediction: "PartitionedProgram | None" = field(default=None, repr=False)

    @property
    def counted(self) -> "PartitionedProgram":
        """The program from which work and communication are best counted: the prediction, where there is one."""
        return self.prediction or self
