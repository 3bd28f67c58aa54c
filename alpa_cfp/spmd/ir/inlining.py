"""Bring a StableHLO module into the form that the passes here work on: one function, no calls.

JAX emits private functions for inner `jit`s and for primitives that it lowers once (`cumsum`, `_where`). Shardy's
partitioning passes want them inlined, and MLIR's own inliner does not know `func.call` in these bindings.
Invariant: the inlined module computes the same values, and `main` keeps its arguments and results.
"""

from typing import Any

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value


def inline_calls(module: Any) -> None:
    """Replace every `func.call` in `module` by the body of its callee and drop every function but `main`."""
    functions = mlir.functions(module)
    done: set[str] = set()

    def inline_block(block: Any) -> None:
        for op in mlir.block_operations(block):
            if op.name == "func.call":
                _inline_call(op, functions, done, inline_block)
                continue
            for region in op.regions:
                for inner in region.blocks:
                    inline_block(inner)

    inline_block(mlir.entry_block(functions["main"]))
    for name, function in functions.items():
        if name != "main":
            function.erase()


def _inline_call(call: Operation, functions: dict[str, Operation], done: set[str], inline_block: Any) -> None:
    name = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
    body = mlir.entry_block(functions[name])
    if name not in done:
        inline_block(body)
        done.add(name)
    mapping: dict[Value, Value] = dict(zip(body.arguments, call.operands, strict=True))
    with ir.InsertionPoint(call):
        for op in mlir.block_operations(body):
            if op.name == "func.return":
                for result, value in zip(call.results, op.operands, strict=True):
                    result.replace_all_uses_with(mapping.get(value, value))
            else:
                mlir.clone_into(op, mapping)
    call.erase()
