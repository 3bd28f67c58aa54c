"""Bring lowered StableHLO into the form that everything here works on: one function without calls, and plainer ops.

Takes a parsed module; `normalize` rewrites it in place, step by step (each step has a function of its own). Invariants:
the module computes the same values, but for the order in which floats are added; `main` keeps its arguments and
results; a module in this form stays as it is, op by op.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.approximate_top_k import make_top_k_exact
from alpa_cfp.spmd.ir.builders import broadcast, constant, dtype_of
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import region_reducer

_EMPTY_MESH = "empty_mesh"

_LITERAL = re.compile(r"dense<(.*)> : tensor<", re.DOTALL)
_PAIR = re.compile(r"\(([^(),]+),([^(),]+)\)")
# Large constants are written as the bytes of their elements.
_BYTES = re.compile(r'"0x([0-9A-Fa-f]*)"')
_COMPLEX_DTYPES = {"f32": np.complex64, "f64": np.complex128}

# The position of the first start among the operands.
_FIRST_START = {"stablehlo.dynamic_slice": 1, "stablehlo.dynamic_update_slice": 2}


def normalize(module: Any) -> None:
    """Rewrite `module` in place."""
    remove_empty_mesh(module)
    make_top_k_exact(module)
    inline_calls(module)
    split_complex_constants(module)
    begin_with_identities(module)
    clamp_starts(module)


def remove_empty_mesh(module: Any) -> None:
    """Remove what names the mesh without axes, which jax writes when it lowers, and the mesh itself.

    These are constraints on the bits of typed random keys; and shardings of scalar arguments, in a program that names
    another mesh, too.
    """
    for op in mlir.all_operations(module):
        if op.name == "sdy.sharding_constraint" and _names_empty_mesh(op.attributes["sharding"]):
            mlir.replace(op, op.operands[0])
    for function in mlir.functions(module).values():
        for kind in ("arg_attrs", "res_attrs"):
            attributes = mlir.function_arguments_attributes(function, kind)
            left = [
                {name: value for name, value in each.items() if name != "sdy.sharding" or not _names_empty_mesh(value)}
                for each in attributes
            ]
            if left != attributes:
                mlir.set_function_arguments_attributes(function, kind, left)
    for op in mlir.block_operations(module.body):
        if op.name == "sdy.mesh" and ir.StringAttr(op.attributes["sym_name"]).value == _EMPTY_MESH:
            op.erase()


def _names_empty_mesh(sharding: Any) -> bool:
    return f"@{_EMPTY_MESH}," in str(sharding)


def remove_identity_converts(module: Any) -> None:
    """Remove conversions to the same type, in place.

    JAX writes them where an operand's dtype is weak, which is no part of its type here: without them, a program for a
    Python number is that for an array of one number.
    """
    for op in mlir.all_operations(module):
        if op.name == "stablehlo.convert" and op.operands[0].type == op.results[0].type:
            mlir.replace(op, op.operands[0])


def inline_calls(module: Any) -> None:
    """Replace every `func.call` in `module` by the body of its callee, and remove every function but `main`, and but
    those that custom calls name.

    JAX emits private functions for inner `jit`s and for primitives that it lowers once (`cumsum`, `_where`). Shardy's
    partitioning passes need them inlined, and MLIR's own inliner does not know `func.call` in these bindings.
    """
    functions = mlir.functions(module)
    done: set[str] = set()

    def inline_block(block: Any) -> None:
        for op in mlir.block_operations(block):
            if op.name == "func.call":
                inline_call(op)
                continue
            for region in op.regions:
                for inner in region.blocks:
                    inline_block(inner)

    def inline_call(call: Operation) -> None:
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

    inline_block(mlir.entry_block(functions["main"]))
    kept = {"main", *(name for op in mlir.inner_operations(functions["main"]) for name in mlir.called(op))}
    for name, function in functions.items():
        if name not in kept:
            function.erase()


def split_complex_constants(module: Any) -> None:
    """Make each complex constant of two real ones, because MLIR's Python bindings cannot read complex ones.

    The numbers stay the same bit for bit.
    """
    for op in mlir.all_operations(module):
        if op.name != "stablehlo.constant":
            continue
        tensor = mlir.tensor_type(op.results[0])
        if not isinstance(tensor.element_type, ir.ComplexType):
            continue
        with ir.InsertionPoint(op), op.location:
            real_type = ir.RankedTensorType.get(tensor.shape, ir.ComplexType(tensor.element_type).element_type)
            parts = [stablehlo.constant(value) for value in _real_and_imaginary(op, real_type)]
            mlir.replace(op, stablehlo.complex(*parts))


def _real_and_imaginary(op: Operation, real_type: ir.RankedTensorType) -> list[Any]:
    """The real and the imaginary parts of a constant, as attributes."""
    literal = _LITERAL.search(str(op))
    assert literal is not None
    written = _BYTES.fullmatch(literal[1])
    if written is None:
        texts = (_PAIR.sub(rf"\{part}", literal[1]) for part in (1, 2))
        return [ir.Attribute.parse(f"dense<{text}> : {real_type}") for text in texts]
    numbers = np.frombuffer(bytes.fromhex(written[1]), _COMPLEX_DTYPES[str(real_type.element_type)])
    numbers = np.broadcast_to(numbers.reshape(real_type.shape if numbers.size > 1 else ()), real_type.shape)
    return [mlir.dense(np.ascontiguousarray(part)) for part in (numbers.real, numbers.imag)]


def begin_with_identities(module: Any) -> None:
    """Rewrite `reduce(x, initial)` as `reduce(x, identity)` combined with `initial`.

    Split over devices a reduction would begin with `initial` on each of them; and of a reduced dim of which a device
    has one element XLA (jaxlib 0.10.2, 0.11.2) drops the initial value. A reduction over dims of size 1 alone stays as
    it is: XLA then gives what it gives for the whole program.
    """
    for op in mlir.all_operations(module):
        if op.name == "stablehlo.reduce" and len(op.results) == 1:
            _begin_with_identity(op)


def _begin_with_identity(op: Operation) -> None:
    reducer = region_reducer(op)
    shape = mlir.tensor_shape(op.operands[0])
    if reducer is None or math.prod(shape[dim] for dim in mlir.int_array(op, "dimensions")) == 1:
        return
    initial, result = op.operands[1], op.results[0]
    dtype = dtype_of(result)
    if dtype.kind == "c" and reducer not in ("add", "multiply"):
        return
    with ir.InsertionPoint(op), op.location:
        identity = constant(np.array(_IDENTITIES[reducer](dtype), dtype))
    if _are_equal_constants(initial, identity):
        _erase_constant(identity)
        return
    op.operands[1] = identity
    with ir.InsertionPoint.after(op), op.location:
        whole = broadcast(initial, mlir.tensor_shape(result))
        combined = mlir.create(f"stablehlo.{reducer}", [result.type], [result, whole])
    result.replace_all_uses_except(combined.results[0], combined)


def _erase_constant(value: Value) -> None:
    """Erase a constant that nothing uses, or a complex number with the constants that it is made of."""
    parts = list(value.owner.operands)
    value.owner.erase()
    for part in parts:
        part.owner.erase()


def _are_equal_constants(a: Value, b: Value) -> bool:
    """Whether two values are equal constants, or complex numbers of equal constants."""
    before, made = mlir.defining_op(a), mlir.defining_op(b)
    if before is None or made is None or before.name != made.name:
        return False
    if made.name == "stablehlo.constant":
        return before.attributes["value"] == made.attributes["value"]
    return all(_are_equal_constants(x, y) for x, y in zip(before.operands, made.operands, strict=True))


def _least(dtype: np.dtype) -> Any:
    return False if dtype.kind == "b" else np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _greatest(dtype: np.dtype) -> Any:
    return True if dtype.kind == "b" else np.iinfo(dtype).max if dtype.kind in "iu" else np.inf


_IDENTITIES: dict[str, Callable[[np.dtype], Any]] = {
    "add": lambda dtype: 0,
    "multiply": lambda dtype: 1,
    "maximum": _least,
    "minimum": _greatest,
    "or": lambda dtype: 0,
    "and": lambda dtype: True if dtype.kind == "b" else np.array(-1).astype(dtype),
}


def clamp_starts(module: Any) -> None:
    """Clamp the starts of slices that depend on values by an op of their own; constants are clamped by XLA.

    A `dynamic_slice` whose start is too large takes the last slice that there is. XLA (jaxlib 0.10.2, 0.11.2) joins two
    of them, as there are when a device takes its part of a slice, by adding up starts that are not clamped, and takes
    something else.
    """
    for op in mlir.all_operations(module):
        if op.name in _FIRST_START:
            _clamp_starts(op, _FIRST_START[op.name])


def _clamp_starts(op: Operation, first: int) -> None:
    whole = mlir.tensor_shape(op.operands[0])
    part = mlir.tensor_shape(op.results[0] if first == 1 else op.operands[1])
    for position, (size, taken) in enumerate(zip(whole, part, strict=True), start=first):
        start = op.operands[position]
        made = mlir.defining_op(start)
        if made is not None and made.name in ("stablehlo.constant", "stablehlo.clamp"):
            continue
        dtype = dtype_of(start)
        last = min(size - taken, int(np.iinfo(dtype).max))
        with ir.InsertionPoint(op), op.location:
            low, high = (constant(np.array(limit, dtype)) for limit in (0, last))
            op.operands[position] = stablehlo.clamp(low, start, high)
