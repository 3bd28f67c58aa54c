"""A program as pure Python values: ops, the values between them, and what partitioning an op means (its `Rule`).

`reading.py` makes a `Graph` from StableHLO; everything later works on it alone, without MLIR. Invariants: ops are in
program order, so operands come before their users; a value's id is its place in `values`; nothing in a graph depends on
names or source locations.
"""

from dataclasses import dataclass

from alpa_cfp.analysis.rules import Rule

# What keeps two steps of an unrolled loop apart: to MLIR a barrier with an attribute of this name, here an op like any
# elementwise one, since it says nothing of recomputation.
STEP_BARRIER = "alpa.step"
# Ops whose result holds the operand's elements, only laid out or typed in another way.
LAYOUT_OPS = frozenset(
    {
        "stablehlo.transpose",
        "stablehlo.reshape",
        "stablehlo.convert",
        "stablehlo.reverse",
        "stablehlo.optimization_barrier",
        "stablehlo.reduce_precision",
        STEP_BARRIER,
    }
)
BARRIER = "stablehlo.optimization_barrier"
# The attributes of a barrier that marks where a pipeline stage begins or ends; others have none.
MARK = "mark"
WHILE = "stablehlo.while"


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor.

    Attributes:
        id: Its number.
        shape: Its dims.
        dtype: Its element type as MLIR writes it ("f32"); the type's text where it is no tensor.
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
        index: Its place in the program.
        name: Its name with dialect ("stablehlo.add").
        operands: Ids of its operands.
        results: Ids of its results.
        attributes: Its attributes and regions as canonical text, equal for ops that compute the same function.
        rule: Its sharding rule; None where neither Shardy has one nor the op is elementwise.
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
        body: The body; its parameters are what the loop carries, followed by the outer values it captures.
        captured: Ids, in the graph around it, of the captured values.
        trip_count: How often the body runs, None where that is not a constant.
    """

    op: int
    body: "Graph"
    captured: tuple[int, ...]
    trip_count: int | None


@dataclass(frozen=True, slots=True)
class Graph:
    """A function or a loop's body.

    Attributes:
        ops: Its operations but for the terminator, in program order.
        values: Its values by id.
        parameters: Ids of its parameters, in order.
        results: Ids of what it returns, in order.
        free: For each op whether it derives from constants and iota alone: it belongs to no block and is cloned where
            needed.
        without_rule: Indices of the ops, free ones aside, that have no rule and so must be replicated.
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

    def shape(self, value: int) -> tuple[int, ...]:
        """The shape of a value."""
        return self.values[value].shape

    def producer(self, value: int) -> Op | None:
        """The op that computes a value; None for a parameter."""
        index = self.values[value].op
        return None if index is None else self.ops[index]

    def origin(self, value: int) -> int:
        """`value` before the barriers that it came through."""
        producer = self.producer(value)
        while producer is not None and producer.name == BARRIER:
            value = producer.operands[producer.results.index(value)]
            producer = self.producer(value)
        return value

    def parameter_or(self, value: int) -> int:
        """The parameter that `value` is behind a pipeline's marks; `value` itself if it is none.

        Behind other barriers it is what something is computed again from, and is left as it is.
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
