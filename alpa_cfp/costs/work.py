"""What a partitioned program does on each device, counted without compiling it.

Takes a `PartitionedProgram`; gives its `Work` and, for what it holds in memory, its ops as a `LocalProgram`. XLA fuses
what this can only guess at: an elementwise result that is used once by another such op is taken to be never written.
Invariant: equal programs have equal work.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from alpa_cfp.spmd.compile.costs import flop_of_block
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.op_kinds import ELEMENTWISE
from alpa_cfp.spmd.module.hlo_module import array_shape
from alpa_cfp.spmd.partition import Collective, PartitionedProgram

# What is no work of its own: it is made inside what uses it.
_INLINE = frozenset(
    f"stablehlo.{name}" for name in ("constant", "iota", "broadcast_in_dim", "reshape", "optimization_barrier")
)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one device.

    Attributes:
        flops: Floating-point operations of contractions.
        written_bytes: Results that are written to memory.
        collectives: Its communication.
    """

    flops: float
    written_bytes: float
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
        """Whether XLA rather computes it again than keeps its result."""
        return self.name in ELEMENTWISE or self.name in _INLINE


@dataclass(frozen=True)
class LocalProgram:
    """One device's program.

    Attributes:
        arguments: How many there are; their values have the first numbers.
        ops: Its ops, in order.
        sizes: For each value its bytes.
        returned: The values that it returns.
        flops: Floating-point operations of its contractions.
    """

    arguments: int
    ops: tuple[LocalOp, ...]
    sizes: tuple[int, ...]
    returned: tuple[int, ...]
    flops: float = 0.0

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
        """Bytes of the results that are not made inside what uses them."""
        returned = set(self.returned)

        def is_written(op: LocalOp, value: int) -> bool:
            if op.name in _INLINE:
                return False
            inside = len(self.users[value]) == 1 and self.ops[self.users[value][0]].name in ELEMENTWISE
            return value in returned or op.name not in ELEMENTWISE or not inside

        return sum(self.sizes[value] for op in self.ops for value in op.results if is_written(op, value))


def read_local(program: PartitionedProgram) -> LocalProgram:
    """The ops of a program. One that is left to XLA is read as if each device computed all of it."""
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
        sizes = tuple(_size(value) for value in values)
        flops = flop_of_block(block)
    return LocalProgram(len(arguments), tuple(ops[:-1]), sizes, ops[-1].operands, flops)


def work_of(program: PartitionedProgram, local: LocalProgram) -> Work:
    """The work of one run of a program, of which `local` are the ops."""
    flops, written = local.flops, local.written_bytes
    if program.partitioner == "xla":
        # How XLA will split it is not known: evenly at best.
        flops, written = flops / program.mesh.num_devices, written / program.mesh.num_devices
    return Work(flops, written, program.collectives)


def _size(value: mlir.Value) -> int:
    try:
        shape = array_shape(value.type)
    except ValueError:  # a token
        return 0
    return math.prod(shape.dims) * shape.dtype.itemsize
