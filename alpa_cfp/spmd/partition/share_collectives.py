"""Communicate once where the same value is communicated twice in the same way.

Shardy, and a pass that inserts a constraint for each user of a value, reshard the value once a user. Input: one
device's program. Invariant: every value of the program stays the same. Parameters are the exception: one that is
gathered for the forward pass and again for the backward pass is not to be held in between (ZeRO-3), and auto-sharding
has counted both.
"""

from typing import Any

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation
from alpa_cfp.spmd.ir.reducers import region_reducer

_SHARED = frozenset(
    f"stablehlo.{name}" for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute")
)


def share_collectives(block: Any) -> None:
    """Replace each collective of `block` that repeats an earlier one by that one, in place."""
    first: dict[tuple[Any, ...], Operation] = {}
    for op in mlir.block_operations(block):
        if op.name not in _SHARED or _gathers_parameter(op):
            continue
        reducer = region_reducer(op) if len(op.regions) else ""
        if reducer is None:
            continue
        numbers = sorted((name, str(op.attributes[name])) for name in op.attributes if name != "channel_handle")
        earlier = first.setdefault((op.name, reducer, *op.operands, *numbers), op)
        if earlier != op:
            for old, new in zip(op.results, earlier.results, strict=True):
                old.replace_all_uses_with(new)
            op.erase()


def _gathers_parameter(op: Operation) -> bool:
    return op.name == "stablehlo.all_gather" and all(mlir.defining_op(operand) is None for operand in op.operands)
