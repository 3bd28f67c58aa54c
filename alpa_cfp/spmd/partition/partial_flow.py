"""Where partial sums may go: the values of a block that are still to be summed over devices, if sums are left out.

Takes a block of the global program with Shardy's collectives, and all-reduces in it that might be made later; gives the
mesh axes over which each value is partial then, and the all-reduces that have to stay, since what follows is not linear
in their results. Invariant: with no all-reduce rejected, summing a value's parts over its axes gives the value that it
has in the program as it is.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import dtype_of
from alpa_cfp.spmd.ir.constants import is_zero
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import region_reducer
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import Axis, LogicalMesh

# Marks an all-reduce that is made later: `localize` leaves it out.
DEFERRED = "alpa.deferred"

Axes = frozenset[Axis]

# Linear in their one (or first) operand, whatever its values are.
_LINEAR = frozenset(
    (
        *(f"stablehlo.{name}" for name in ("negate", "transpose", "reshape", "broadcast_in_dim", "slice", "reverse")),
        *("sdy.all_slice", "sdy.sharding_constraint", "sdy.reshard"),
    )
)
_SUMS = ("stablehlo.add", "stablehlo.subtract", "stablehlo.concatenate")
_UPDATE = "stablehlo.dynamic_update_slice"
# What puts values together: partial, if all of them are partial alike.
_JOINING = (*_SUMS, _UPDATE, "stablehlo.select")
# An op that makes partial sums, and of which the sum over devices is the value that is meant; of a loop it is what its
# iterations sum (`sums_after_loops`).
_SUMMING = (
    "stablehlo.dot_general",
    "stablehlo.convolution",
    "stablehlo.scatter",
    "stablehlo.gather",
    "stablehlo.while",
)


@dataclass(frozen=True, slots=True)
class PartialSum:
    """What is known of a value that is partial.

    Attributes:
        axes: The axes over which it is still to be summed.
        sources: The all-reduces that were left out for it.
    """

    axes: Axes = frozenset()
    sources: frozenset[Operation] = frozenset()

    def __or__(self, other: "PartialSum") -> "PartialSum":
        return PartialSum(self.axes | other.axes, self.sources | other.sources)


WHOLE = PartialSum()


def sums_of(block: Any) -> set[Operation]:
    """The all-reduces of a block that sum partial sums of floating-point numbers over devices."""
    return {op for op in mlir.block_operations(block) if _is_sum(op)}


def _is_sum(op: Operation) -> bool:
    if op.name != "sdy.all_reduce":
        return False
    source = mlir.defining_op(op.operands[0])
    if source is None or dtype_of(op.results[0]).kind in "iub":
        return False
    return source.name in _SUMMING or (source.name == "stablehlo.reduce" and region_reducer(source) == "add")


@dataclass
class PartialFlow:
    """Follows partial values through a block.

    Attributes:
        mesh: The logical mesh.
        candidates: The all-reduces that are left out.
        accumulations: Ops `old + new` where `old` is a sum over devices in the same sense as `new`, whatever it is.
        is_lenient: Whether what is put together of a partial value and one that is not is taken for partial: to find
            what may become partial, not what is right.
        known: The partial values: those that the block is given, at first.
        rejected: The candidates that have to stay.
    """

    mesh: LogicalMesh
    candidates: set[Operation]
    accumulations: frozenset[Operation] = frozenset()
    is_lenient: bool = False
    known: dict[Value, PartialSum] = field(default_factory=dict)
    rejected: set[Operation] = field(default_factory=set)

    def of(self, value: Value) -> PartialSum:
        """What is known of a value; `WHOLE` if it is not partial."""
        return self.known.get(value, WHOLE)

    def reject(self, values: Iterable[Value]) -> None:
        """Let nothing be left out for any of `values`."""
        for value in values:
            self.rejected |= self.of(value).sources

    def follow(self, operations: Iterable[Operation]) -> "PartialFlow":
        """Follow the partial values through ops, in order."""
        for op in operations:
            if op in self.candidates:
                # The partial sums may be made of values that are partial over other axes already.
                axes = frozenset(annotations.axes_attribute(op, "reduction_axes", self.mesh))
                self.known[op.results[0]] = self.of(op.operands[0]) | PartialSum(axes, frozenset({op}))
            elif self.known and any(value in self.known for value in mlir.operands_deep(op)):
                self._through(op)
        return self

    def _through(self, op: Operation) -> None:
        partial = [self.of(value).axes for value in op.operands]
        if op.name == "stablehlo.optimization_barrier":
            pairs = zip(op.operands, op.results, strict=True)
            self.known.update({result: self.known[operand] for operand, result in pairs if operand in self.known})
        elif op in self.accumulations or _is_linear(op, partial) or (self.is_lenient and op.name in _JOINING):
            self._pass_on(op)
        else:
            self.reject(mlir.operands_deep(op))

    def _pass_on(self, op: Operation) -> None:
        found = WHOLE
        for value in op.operands:
            found |= self.of(value)
        # A dim that is split along one of these axes holds other elements on each device: nothing there to be summed.
        for sharding in annotations.result_shardings(op, self.mesh):
            if any(axis.overlaps(own) for axis in found.axes for own in sharding.axes):
                self.reject(op.operands)
                return
        self.known[op.results[0]] = found


def _is_linear(op: Operation, partial: Sequence[Axes]) -> bool:
    """Whether the sum over devices of the op's results is the op's result of the sums of its partial operands."""
    if op.name in _LINEAR:
        return True
    if op.name == "stablehlo.convert":
        return _widens(op)
    if op.name == "stablehlo.reduce":
        return len(op.results) == 1 and region_reducer(op) == "add" and is_zero(op.operands[1])
    if op.name == "stablehlo.pad":
        return not partial[1] and is_zero(op.operands[1])
    if op.name == "stablehlo.multiply":
        return sum(map(bool, partial)) == 1
    if op.name == "stablehlo.divide":
        return not partial[1]
    if op.name == "stablehlo.select":
        return not partial[0] and partial[1] == partial[2]
    if op.name == "stablehlo.dynamic_slice":
        return not any(partial[1:])
    if op.name == _UPDATE:
        return partial[0] == partial[1] and not any(partial[2:])
    return op.name in _SUMS and len(set(partial)) == 1


def _widens(op: Operation) -> bool:
    """Whether a conversion keeps every value of its operand (so that it is linear on them)."""
    before, after = map(dtype_of, (op.operands[0], op.results[0]))
    return np.can_cast(before, after, "safe") or (before.itemsize < after.itemsize and after.kind == "f")


def leave_out(candidates: set[Operation], follow: Callable[[set[Operation]], PartialFlow]) -> PartialFlow | None:
    """Mark as many of `candidates` as can be made later.

    Args:
        candidates: All-reduces.
        follow: Follows the partial values that there are if given ones of them are left out.

    Returns:
        The flow without those that were marked; None if each of them has to stay.
    """
    left = set(candidates)
    while left:
        flow = follow(left)
        if not flow.rejected:
            for op in left:
                op.attributes[DEFERRED] = ir.UnitAttr.get()
            return flow
        left -= flow.rejected
    return None
