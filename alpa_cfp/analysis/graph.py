"""A program as pure Python values: ops, the values between them, and the sharding rule of each op.

`reading.py` makes a `Graph` from StableHLO; everything later works on it alone, without MLIR. Invariants: ops are in
program order, so operands come before their users; a value's id is its index in `values`; nothing in a graph depends on
names or source locations.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from alpa_cfp.analysis.rules import Rule

# Separates two steps of an unrolled loop. In MLIR it is a barrier with an attribute of this name; here it is an
# ordinary elementwise op, since it has nothing to do with rematerialisation.
STEP_BARRIER = "alpa.step"
# What the program itself asks of a value's sharding: an identity (`spmd.shardings.constraints`).
CONSTRAINT = "sdy.sharding_constraint"
# A part that is written for each device (`spmd.shardings.islands`).
ISLAND = "sdy.manual_computation"
# Ops whose result has the operand's elements in another layout or type.
LAYOUT_OPS = frozenset(
    {
        "stablehlo.transpose",
        "stablehlo.reshape",
        "stablehlo.convert",
        "stablehlo.reverse",
        "stablehlo.optimization_barrier",
        "stablehlo.reduce_precision",
        STEP_BARRIER,
        CONSTRAINT,
    }
)
BARRIER = "stablehlo.optimization_barrier"
# The attributes of a barrier that marks the start or end of a pipeline stage; other barriers have none.
MARK = "mark"
WHILE = "stablehlo.while"


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor.

    Attributes:
        id: Its number.
        shape: Its dims.
        dtype: Its element type as in MLIR ("f32"); the type's text if it is no tensor.
        op: The index of the op that computes it, None for a parameter.
        position: The parameter's or result's number.
        users: Indices of the ops that use it, ascending, each once; what a graph returns is not a use.
    """

    id: int
    shape: tuple[int, ...]
    dtype: str
    op: int | None
    position: int
    users: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Op:
    """An operation.

    Attributes:
        index: Its position in the program.
        name: Its name with dialect ("stablehlo.add").
        operands: Ids of its operands.
        results: Ids of its results.
        attributes: Its attributes and regions as canonical text, equal for ops that compute the same function.
        rule: Its sharding rule; None if Shardy has none for it and it is no barrier.
    """

    index: int
    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    attributes: str
    rule: Rule | None


@dataclass(frozen=True, slots=True)
class Loop:
    """The body of a `while`.

    Attributes:
        op: The index of the `while` in the graph around it.
        body: The body; its parameters are the values that the loop carries, then the outer values that it captures.
        trip_count: The number of iterations; None where that is not a constant.
    """

    op: int
    body: "Graph"
    trip_count: int | None


@dataclass(frozen=True, slots=True)
class Graph:
    """A function or a loop's body.

    Attributes:
        ops: Its operations without the terminator, in program order.
        values: Its values by id.
        parameters: Ids of its parameters, in order.
        results: Ids of the values that it returns, in order.
        constant_derived: For each op whether it is computed from constants and iota alone. Such an op belongs to no
            block and is copied into each subprogram that uses it.
        without_rule: Indices of the other ops without a sharding rule, which must be replicated.
        loops: The bodies of its `while` ops.
        constants: (parameter, digest) for the parameters of a loop's body that are constants in the graph around it.
    """

    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    parameters: tuple[int, ...]
    results: tuple[int, ...]
    constant_derived: tuple[bool, ...]
    without_rule: tuple[int, ...]
    loops: tuple[Loop, ...]
    constants: tuple[tuple[int, int], ...] = ()

    @property
    def names_axes(self) -> bool:
        """Whether the program names mesh axes itself, by what it asks of shardings."""
        return any(op.name in (CONSTRAINT, ISLAND) for op in self.ops)

    def shape(self, value: int) -> tuple[int, ...]:
        """The shape of a value."""
        return self.values[value].shape

    def elements(self, value: int) -> int:
        """The number of elements of a value before broadcasts: an optimizer's broadcast scale has one."""
        producer = self.producer(value)
        while producer is not None and producer.name == "stablehlo.broadcast_in_dim":
            (value,) = producer.operands
            producer = self.producer(value)
        return math.prod(self.shape(value))

    def producer(self, value: int) -> Op | None:
        """The op that computes a value; None for a parameter."""
        index = self.values[value].op
        return None if index is None else self.ops[index]

    def users_through_barriers(self, value: int) -> set[int]:
        """The ops that use a value, directly or through barriers. A barrier itself relates independent values."""
        found: set[int] = set()
        for user in self.values[value].users:
            op = self.ops[user]
            if op.name != BARRIER:
                found.add(user)
                continue
            for operand, result in zip(op.operands, op.results, strict=True):
                if operand == value:
                    found |= self.users_through_barriers(result)
        return found

    def with_ancestors(self, ops: Iterable[int]) -> list[bool]:
        """For each op whether it is one of `ops`, or one of them is computed from it."""
        found = [False] * len(self.ops)
        for op in ops:
            found[op] = True
        for op in reversed(self.ops):
            if found[op.index]:
                for operand in op.operands:
                    if (producer := self.values[operand].op) is not None:
                        found[producer] = True
        return found

    def origin(self, value: int) -> int:
        """The value that `value` is before all barriers."""
        producer = self.producer(value)
        while producer is not None and producer.name == BARRIER:
            value = producer.operands[producer.results.index(value)]
            producer = self.producer(value)
        return value

    def parameter_or(self, value: int) -> int:
        """The parameter that `value` is before a pipeline's marks; `value` itself if it is none.

        Other barriers are not passed: they guard the inputs of a rematerialisation.
        """
        found, producer = value, self.producer(value)
        while producer is not None and producer.name == BARRIER and producer.attributes == MARK:
            found = producer.operands[producer.results.index(found)]
            producer = self.producer(found)
        return found if producer is None else value


def itemsize(dtype: str) -> int:
    """Bytes of an element of an MLIR type; a sub-byte type takes one."""
    bits = int("".join(filter(str.isdigit, dtype.removeprefix("complex").split("E")[0])) or 8)
    return max(1, bits // 8) * (2 if dtype.startswith("complex") else 1)
