"""Barriers that XLA has to keep: between the steps of an unrolled loop, and before what is computed again.

`step_barrier` marks, while a function is traced, the values that one step passes to the next: an optimization barrier
of one value with an attribute, so that analyses can tell it from the barriers of `jax.checkpoint`. `repeat_barrier`
makes one of the latter kind: the values from which a part of the forward pass is computed again, with a gradient that
it waits for. `keep_apart` takes a module that is about to be compiled for CPUs and makes each such barrier a call of
the identity that XLA does not inline. Invariant: the same values, in the same buffers where XLA shares them.

XLA on CPUs drops barriers before it fuses and schedules. So a recurrence that is unrolled would take time in the square
of its length, as the elementwise ops of all earlier steps are fused into each of their users; and what is computed
again would be computed beside what it repeats, and free no memory. XLA's CallInliner
(`xla/service/call_inliner.cc`) leaves calls alone whose frontend attribute `inlineable` is "false", and fusion does
not cross calls. Tested with jax 0.10.2, 0.11.2 and 0.12.0.1.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir as lowering
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.constants import source_of
from alpa_cfp.spmd.ir.mlir import Operation, Value

STEP = "alpa.step"
REPEAT = "alpa.repeat"

_step_barrier = Primitive("step_barrier")
_step_barrier.def_impl(lambda value: value)
_step_barrier.def_abstract_eval(lambda aval: aval)


def step_barrier(value: Any) -> jax.Array:
    """`value`, behind a barrier that no fusion crosses. To be called after differentiation."""
    return _step_barrier.bind(value)


def _lower(_: Any, operand: Any) -> list[Any]:
    barrier = stablehlo.OptimizationBarrierOp([operand])
    barrier.operation.attributes[STEP] = ir.UnitAttr.get()
    return list(barrier.results)


lowering.register_lowering(_step_barrier, _lower)


def repeat_barrier(values: Sequence[Value]) -> Operation:
    """A barrier of values at the current insertion point, behind which they are computed with again."""
    barrier = stablehlo.OptimizationBarrierOp(list(values)).operation
    barrier.attributes[REPEAT] = ir.UnitAttr.get()
    return barrier


def is_step_barrier(op: Operation) -> bool:
    """Whether an operation is what `step_barrier` is lowered to."""
    return STEP in op.attributes


def may_have_barriers(bytecode: bytes) -> bool:
    """Whether a module has barriers to keep; MLIR's bytecode holds the names of attributes as they are."""
    return STEP.encode() in bytecode or REPEAT.encode() in bytecode


def keep_apart(module: Any) -> None:
    """Turn the barriers to keep in `main`, of one device's program, into calls that XLA keeps, in place.

    The step barrier of a constant becomes none: the first step may use its value.
    """
    identities: dict[tuple[Any, ...], func.FuncOp] = {}
    for op in mlir.block_operations(mlir.entry_block(mlir.main_function(module))):
        if not (is_step_barrier(op) or REPEAT in op.attributes):
            continue
        if is_step_barrier(op) and _is_constant(op.operands[0]):
            mlir.replace(op, op.operands[0])
            continue
        types = tuple(operand.type for operand in op.operands)
        if types not in identities:
            identities[types] = _add_identity(module, f"step_{len(identities)}", types)
        with ir.InsertionPoint(op), op.location:
            call = func.CallOp(identities[types], list(op.operands))
        call.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get({"inlineable": ir.StringAttr.get("false")})
        for old, new in zip(op.results, call.results, strict=True):
            old.replace_all_uses_with(new)
        op.erase()


def _add_identity(module: Any, name: str, types: Sequence[Any]) -> func.FuncOp:
    with ir.InsertionPoint(module.body), ir.Location.unknown():
        function = func.FuncOp(name, (list(types), list(types)), visibility="private")
        block = function.add_entry_block()
        with ir.InsertionPoint(block):
            func.return_(list(block.arguments))
    return function


def _is_constant(value: Value) -> bool:
    op = source_of(value, ("stablehlo.broadcast_in_dim", "stablehlo.reshape"))
    return op is not None and op.name == "stablehlo.constant"
