"""Barriers that keep the steps of an unrolled loop apart, from tracing to compiling.

`step_barrier` marks, while a function is traced, what one step hands to the next: an optimization barrier of one value
with an attribute, so that analyses can tell it from the barriers of `jax.checkpoint`. `keep_apart` takes a module that
is about to be compiled for CPUs and makes each such barrier a call of the identity that XLA does not inline. Invariant:
the same values, in the same buffers where XLA shares them.

Without it, a recurrence that is unrolled takes time in the square of its length: XLA on CPUs drops barriers before it
fuses, and fuses the elementwise ops of all earlier steps into each of their users. XLA's CallInliner
(`xla/service/call_inliner.cc`) leaves calls alone whose frontend attribute `inlineable` is "false", and fusion does
not cross calls. Tested with jax 0.10.2 and 0.11.2.
"""

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir as lowering
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value

STEP = "alpa.step"
# Ops that make nothing which would have to be kept, given a constant.
_LAID_OUT = ("stablehlo.broadcast_in_dim", "stablehlo.reshape")
_NOT_INLINED = {"inlineable": "false"}

_step_barrier = Primitive("step_barrier")
_step_barrier.def_impl(lambda value: value)
_step_barrier.def_abstract_eval(lambda aval: aval)


def step_barrier(value: Any) -> jax.Array:
    """`value`, of which nothing that compiles it looks at how it was made. To be called after differentiation."""
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

    What is constant gets no call: the first step may know what it starts from.
    """
    identities: dict[Any, str] = {}
    for op in filter(is_step_barrier, mlir.block_operations(mlir.entry_block(mlir.main_function(module)))):
        (operand,), (result,) = op.operands, op.results
        if _is_constant(operand):
            result.replace_all_uses_with(operand)
        else:
            name = identities.setdefault(operand.type, f"step_{len(identities)}")
            result.replace_all_uses_with(_call(op, name, operand))
        op.erase()
    for type_, name in identities.items():
        _add_identity(module, name, type_)


def _call(op: Operation, name: str, operand: Value) -> Value:
    attributes = {
        "callee": ir.FlatSymbolRefAttr.get(name),
        "mhlo.frontend_attributes": ir.DictAttr.get(
            {key: ir.StringAttr.get(value) for key, value in _NOT_INLINED.items()}
        ),
    }
    with ir.InsertionPoint(op), op.location:
        return mlir.create("func.call", [operand.type], [operand], attributes).results[0]


def _add_identity(module: Any, name: str, type_: Any) -> None:
    with ir.InsertionPoint(module.body), ir.Location.unknown():
        function = ir.Operation.create(
            "func.func",
            regions=1,
            attributes={
                "sym_name": ir.StringAttr.get(name),
                "sym_visibility": ir.StringAttr.get("private"),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get([type_], [type_])),
            },
        )
        block = ir.Block.create_at_start(function.regions[0], [type_])
        with ir.InsertionPoint(block):
            mlir.create("func.return", [], [block.arguments[0]])


def _is_constant(value: Value) -> bool:
    op = mlir.defining_op(value)
    while op is not None and op.name in _LAID_OUT:
        op = mlir.defining_op(op.operands[0])
    return op is not None and op.name == "stablehlo.constant"
