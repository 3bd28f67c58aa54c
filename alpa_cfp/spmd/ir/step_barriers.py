"""Barriers that keep the steps of an unrolled loop apart, from tracing to compiling.

`step_barrier` marks, while a function is traced, the values that one step passes to the next: an optimization barrier
of one value with an attribute, so that analyses can tell it from the barriers of `jax.checkpoint`. `keep_apart` takes a
module that is about to be compiled for CPUs and makes each such barrier a call of the identity that XLA does not
inline. Invariant: the same values, in the same buffers where XLA shares them.

Without it, a recurrence that is unrolled takes time in the square of its length: XLA on CPUs drops barriers before it
fuses, and fuses the elementwise ops of all earlier steps into each of their users. XLA's CallInliner
(`xla/service/call_inliner.cc`) leaves calls alone whose frontend attribute `inlineable` is "false", and fusion does
not cross calls. Tested with jax 0.10.2, 0.11.2 and 0.12.0.1.
"""

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


def is_step_barrier(op: Operation) -> bool:
    """Whether an operation is what `step_barrier` is lowered to."""
    return STEP in op.attributes


def may_have_step_barriers(bytecode: bytes) -> bool:
    """Whether a module has any; MLIR's bytecode holds the names of attributes as they are."""
    return STEP.encode() in bytecode


def keep_apart(module: Any) -> None:
    """Turn the step barriers in `main`, of one device's program, into calls that XLA keeps, in place.

    A constant gets no call: the first step may use its value.
    """
    identities: dict[Any, func.FuncOp] = {}
    for op in filter(is_step_barrier, mlir.block_operations(mlir.entry_block(mlir.main_function(module)))):
        (operand,) = op.operands
        if not _is_constant(operand):
            if operand.type not in identities:
                identities[operand.type] = _add_identity(module, f"step_{len(identities)}", operand.type)
            with ir.InsertionPoint(op), op.location:
                call = func.CallOp(identities[operand.type], [operand])
            call.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get({"inlineable": ir.StringAttr.get("false")})
            operand = call.results[0]
        mlir.replace(op, operand)


def _add_identity(module: Any, name: str, type_: Any) -> func.FuncOp:
    with ir.InsertionPoint(module.body), ir.Location.unknown():
        function = func.FuncOp(name, ([type_], [type_]), visibility="private")
        block = function.add_entry_block()
        with ir.InsertionPoint(block):
            func.return_(list(block.arguments))
    return function


def _is_constant(value: Value) -> bool:
    op = source_of(value, ("stablehlo.broadcast_in_dim", "stablehlo.reshape"))
    return op is not None and op.name == "stablehlo.constant"
