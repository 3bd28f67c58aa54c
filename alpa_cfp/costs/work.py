"""The work of a partitioned program on each device, counted without compiling it.

Takes a `PartitionedProgram`; gives its `Work`, and its ops as a `LocalProgram`, from which memory is counted. XLA's
fusion is approximated: an elementwise result that only one other such op uses counts as never written. Invariant:
equal programs have equal work.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from alpa_cfp.spmd.compile.costs import flop_of_op
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.op_kinds import CONTRACTIONS, ELEMENTWISE
from alpa_cfp.spmd.ir.trip_counts import runs_of
from alpa_cfp.spmd.module.hlo_module import array_shape
from alpa_cfp.spmd.partition import Collective, PartitionedProgram

# Ops without work of their own: their results are computed inside the ops that use them.
_INLINE = frozenset(
    f"stablehlo.{name}" for name in ("constant", "iota", "broadcast_in_dim", "reshape", "optimization_barrier")
)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one device.

    Attributes:
        flops: Floating-point operations of contractions.
        memory_bytes: Results that are written to memory, and operands that contractions read.
        collectives: Its communication.
    """

    flops: float
    memory_bytes: float
    collectives: tuple[Collective, ...]


@dataclass(frozen=True, slots=True)
class LocalOp:
    """An op of one device's program.

    Attributes:
        name: Its name with dialect.
        operands, results: Numbers of values.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]

    @property
    def is_cheap(self) -> bool:
        """Whether XLA recomputes its result rather than saving it."""
        return self.name in ELEMENTWISE or self.name in _INLINE


@dataclass(frozen=True)
class LocalProgram:
    """One device's program.

    Attributes:
        arguments: The number of arguments; their values have the first numbers.
        ops: Its ops, in order.
        sizes: The bytes of each value.
        returned: The values that it returns.
        flops: Floating-point operations of its contractions, of those in a loop as often as it goes round.
        read_bytes: Operands of its contractions, likewise.
    """

    arguments: int
    ops: tuple[LocalOp, ...]
    sizes: tuple[int, ...]
    returned: tuple[int, ...]
    flops: float = 0.0
    read_bytes: int = 0

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """For each value the ops that use it, ascending."""
        users: list[list[int]] = [[] for _ in self.sizes]
        for number, op in enumerate(self.ops):
            for value in dict.fromkeys(op.operands):
                users[value].append(number)
        return tuple(map(tuple, users))

    @property
    def written_bytes(self) -> int:
        """Bytes of the results that are written to memory, not computed inside the op that uses them."""
        returned = set(self.returned)

        def is_written(op: LocalOp, value: int) -> bool:
            if op.name in _INLINE:
                return False
            inside = len(self.users[value]) == 1 and self.ops[self.users[value][0]].name in ELEMENTWISE
            return value in returned or op.name not in ELEMENTWISE or not inside

        return sum(self.sizes[value] for op in self.ops for value in op.results if is_written(op, value))


def read_local(program: PartitionedProgram) -> LocalProgram:
    """The ops of a program. One that XLA partitions is read as if each device computed all of it."""
    with mlir.context():
        parsed = mlir.parse(program.bytecode)
        block = mlir.entry_block(mlir.main_function(parsed))
        arguments = list(block.arguments)
        operations = mlir.block_operations(block)
        values = [*arguments, *(result for operation in operations for result in operation.results)]
        number = {value: i for i, value in enumerate(values)}
        ops = [
            LocalOp(
                operation.name,
                tuple(number[value] for value in mlir.operands_deep(operation) if value in number),
                tuple(number[value] for value in operation.results),
            )
            for operation in operations
        ]
        size_of_type: dict[Any, int] = {}
        sizes = tuple(_size(value.type, size_of_type) for value in values)
        contractions = [(operation, runs) for operation, runs in runs_of(block) if operation.name in CONTRACTIONS]
        read = sum(
            runs * _size(value.type, size_of_type) for operation, runs in contractions for value in operation.operands
        )
        flops = float(sum(runs * flop_of_op(operation) for operation, runs in contractions))
    return LocalProgram(len(arguments), tuple(ops[:-1]), sizes, ops[-1].operands, flops, read)


def work_of(program: PartitionedProgram, local: LocalProgram) -> Work:
    """The work of one run of a program, whose ops are `local`."""
    flops, memory = local.flops, local.written_bytes + local.read_bytes
    if program.partitioner == "xla":
        # It is not known how XLA will split it: evenly at best.
        flops, memory = flops / program.mesh.num_devices, memory / program.mesh.num_devices
    return Work(flops, memory, program.collectives)


def _size(of_type: Any, known: dict[Any, int]) -> int:
    """The bytes of a value of a type; the sizes of types that were seen are in `known`."""
    if (size := known.get(of_type)) is None:
        try:
            shape = array_shape(of_type)
            size = math.prod(shape.dims) * shape.dtype.itemsize
        except ValueError:  # a token
            size = 0
        known[of_type] = size
    return size
