"""Reductions that begin with something else than their identity, as reductions that begin with it, and one more step.

Takes a parsed module; rewrites `reduce(x, initial)` as `reduce(x, identity)` combined with `initial`. Split over
devices a reduction would begin with `initial` on each of them; and of a reduced dim of which a device has one element
XLA (jaxlib 0.10.2, 0.11.2) drops the initial value. A reduction over dims of size 1 alone is let be: XLA then gives
what it gives for the whole program. Invariants: the same values, but for the order in which floats are added; a module
that has been rewritten stays as it is, op by op.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import builders, mlir
from alpa_cfp.spmd.ir.element_types import numpy_dtype
from alpa_cfp.spmd.ir.mlir import Operation
from alpa_cfp.spmd.ir.reducers import region_reducer


def begin_with_identities(module: Any) -> None:
    """Rewrite the reductions of `module`, in place."""
    for function in mlir.functions(module).values():
        for op in list(mlir.walk(mlir.entry_block(function))):
            if op.name == "stablehlo.reduce" and len(op.results) == 1:
                _rewrite(op)


def _rewrite(op: Operation) -> None:
    reducer = region_reducer(op)
    shape = mlir.tensor_shape(op.operands[0])
    if reducer is None or math.prod(shape[dim] for dim in mlir.int_array(op, "dimensions")) == 1:
        return
    initial, result = op.operands[1], op.results[0]
    dtype = np.dtype(numpy_dtype(mlir.tensor_type(result).element_type))
    if dtype.kind == "c" and reducer not in ("add", "multiply"):
        return
    with ir.InsertionPoint(op), op.location:
        identity = builders.constant(np.array(_IDENTITIES[reducer](dtype), dtype))
    before, made = mlir.defining_op(initial), mlir.defining_op(identity)
    assert made is not None
    if before is not None and before.name == made.name and _is_same(before, made):
        _erase(made)
        return
    op.operands[1] = identity
    with ir.InsertionPoint.after(op), op.location:
        whole = builders.broadcast(initial, mlir.tensor_shape(result))
        combined = builders.binary(reducer, result, whole)
    user = mlir.defining_op(combined)
    assert user is not None
    result.replace_all_uses_except(combined, user)


def _erase(made: Operation) -> None:
    """Erase a constant that nothing uses, or a complex number with the constants that it is made of."""
    parts = [mlir.defining_op(value) for value in made.operands]
    made.erase()
    for part in parts:
        if part is not None:
            part.erase()


def _is_same(a: Operation, b: Operation) -> bool:
    """Whether two constants, or two complex numbers of constants, are equal."""
    if a.name == "stablehlo.constant":
        return a.attributes["value"] == b.attributes["value"]
    parts = [(mlir.defining_op(x), mlir.defining_op(y)) for x, y in zip(a.operands, b.operands, strict=True)]
    return all(x is not None and y is not None and x.name == y.name and _is_same(x, y) for x, y in parts)


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
