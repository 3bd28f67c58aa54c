"""How often the ops of a program run: those in a loop as often as it goes round.

Takes ops of StableHLO; only what is written in the program counts, such as the bounds that `lax.scan` gives a loop.
"""

from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value

_WHILE = "stablehlo.while"


def runs_of(block: Any) -> Iterator[tuple[Operation, int]]:
    """Every op below `block`, inner ones after the op that holds them, with how often it runs in one run of the block.

    A loop of unknown length counts as one iteration.
    """
    for op in mlir.block_operations(block):
        yield op, 1
        times = (trip_count(op) or 1) if op.name == _WHILE else 1
        for region in op.regions:
            for inner in region.blocks:
                for nested, runs in runs_of(inner):
                    yield nested, times * runs


def trip_count(op: Operation) -> int | None:
    """The number of iterations of a `while` whose start, step and bound are constants; None for any other."""
    condition, body = (region.blocks[0] for region in op.regions)
    compare = mlir.defining_op(mlir.block_operations(condition)[-1].operands[0])
    if (
        compare is None
        or compare.name != "stablehlo.compare"
        or "LT" not in str(compare.attributes["comparison_direction"])
    ):
        return None
    counter = compare.operands[0]
    if mlir.defining_op(counter) is not None:
        return None
    position = next((i for i, each in enumerate(condition.arguments) if each == counter), None)
    if position is None:
        return None
    step_op = mlir.defining_op(mlir.block_operations(body)[-1].operands[position])
    if step_op is None or step_op.name != "stablehlo.add" or step_op.operands[0] != body.arguments[position]:
        return None
    bounds = [_constant(each) for each in (op.operands[position], compare.operands[1], step_op.operands[1])]
    if any(each is None for each in bounds):
        return None
    start, stop, step = (int(each) for each in bounds if each is not None)
    return max(0, -(-(stop - start) // step)) if step > 0 else None


def _constant(value: Value) -> int | None:
    """The integer of a scalar constant; None for any other value."""
    op = mlir.defining_op(value)
    if op is None or op.name != "stablehlo.constant":
        return None
    attribute = op.attributes["value"]
    if not isinstance(attribute, ir.DenseIntElementsAttr) or len(attribute) != 1:
        return None
    return int(attribute[0])
