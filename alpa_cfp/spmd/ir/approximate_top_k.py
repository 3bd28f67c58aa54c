"""`jax.lax.approx_max_k` and `approx_min_k` as exact ones, where the compiler would make exact ones of them anyway.

Takes a parsed module whose functions are not inlined yet, and rewrites it in place. On CPUs and GPUs XLA sorts
(`is_fallback`), and a call of a library is not split by samples, as `chlo.top_k` is.
Invariant: the same numbers, in the same order; of equal ones the first, as `jax.lax.top_k` takes them.
"""

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value

_CALL, _CONFIG = "ApproxTopK", "mhlo.backend_config"


def make_top_k_exact(module: Any) -> None:
    """Rewrites the calls of `module`; those that XLA does not make exact, as on TPUs, stay calls."""
    for op in mlir.all_operations(module):
        if op.name == "stablehlo.custom_call" and mlir.call_target(op) == _CALL and _CONFIG in op.attributes:
            config = ir.DictAttr(op.attributes[_CONFIG])
            if all(name in config and ir.BoolAttr(config[name]).value for name in ("is_fallback", "aggregate_to_topk")):
                _rewrite(op, *(ir.IntegerAttr(config[name]).value for name in ("reduction_dim", "top_k")))


def _rewrite(op: Operation, dim: int, count: int) -> None:
    is_least = "_lt_" in str(op.attributes["called_computations"])
    with ir.InsertionPoint(op), op.location:
        value = stablehlo.negate(op.operands[0]) if is_least else op.operands[0]
        order = list(range(mlir.tensor_type(value).rank))
        order[dim], order[-1] = order[-1], order[dim]
        value = _transposed(value, order)
        shape = [*mlir.tensor_shape(value)[:-1], count]
        types = [
            ir.RankedTensorType.get(shape, element)
            for element in (mlir.tensor_type(value).element_type, ir.IntegerType.get_signless(32))
        ]
        values, indices = mlir.create("chlo.top_k", types, [value], {"k": mlir.i64(count)}).results
        values = stablehlo.negate(values) if is_least else values
        for result, new in zip(op.results, (values, indices), strict=True):
            result.replace_all_uses_with(_transposed(new, order))
    op.erase()


def _transposed(value: Value, order: list[int]) -> Value:
    """A value with two dims exchanged; as it is if they are one."""
    return value if order == sorted(order) else stablehlo.transpose(value, order)
