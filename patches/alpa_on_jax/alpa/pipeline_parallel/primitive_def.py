"""Replacements in `alpa.pipeline_parallel.primitive_def`: how a pipeline marker is lowered and differentiated.

Takes alpa's primitive `pipeline_p`, the identity on its operands with a name and a kind, and gives it a lowering to
a `stablehlo.optimization_barrier` for each operand with the string attribute `alpa.marker` = `name$kind`, where the
fork of XLA had one custom call. A barrier keeps the compiler from moving operations over the mark; the attribute is
what cuts a module into stages afterwards. One barrier over all operands would make one operation of what has nothing to
do with each other: all the gradients of a stage, on their way to the update. A marker without operands
(a layer boundary) has no counterpart in a module and lowers to nothing; alpa reads it from the jaxpr. So does it with
the mark of gradients, which therefore lowers to its operands: a barrier there would keep alive what nobody uses and
keep the update from being fused with the gradients.

Uses the private `jax._src.interpreters.{ad,batching,mlir}`; tested with JAX 0.10.2, 0.11.2 and 0.12.0.1.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from jax._src.core import Primitive
from jax._src.interpreters import ad, batching, mlir
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo

from alpa_cfp.spmd.module.stages import MARKER
from alpa_on_jax.replacing import replace


def apply(module: ModuleType) -> None:
    """Register the rules of `pipeline_p` in the way that current JAX looks them up."""
    pipeline_p = module.pipeline_p
    jvp, transpose = _make_jvp(pipeline_p), _make_transpose(pipeline_p)
    mlir.register_lowering(pipeline_p, _lower)
    ad.primitive_jvps[pipeline_p] = jvp
    ad.primitive_transposes[pipeline_p] = transpose
    batching.primitive_batchers[pipeline_p] = _make_batcher(pipeline_p)
    replace(module, _pipeline_value_and_jvp=jvp, _pipeline_transpose=transpose)


def _lower(ctx: mlir.LoweringRuleContext, *operands: ir.Value, name: str, mark_type: str) -> Sequence[ir.Value]:
    if not operands or mark_type == "grad":
        return operands
    barriers = [hlo.OptimizationBarrierOp([operand]) for operand in operands]
    for barrier in barriers:
        barrier.operation.attributes[MARKER] = ir.StringAttr.get(f"{name}${mark_type}")
    return [barrier.results[0] for barrier in barriers]


def _make_jvp(pipeline_p: Primitive) -> Callable[..., Any]:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], *, name: str, mark_type: str) -> tuple[list, list]:
        tangent_mark_type = _one_of(mark_type, {"start": "jvp_start", "end": "jvp_end"})
        primals_out = pipeline_p.bind(*primals, name=name, mark_type=mark_type)
        marked = iter(pipeline_p.bind(*_nonzero(tangents), name=name, mark_type=tangent_mark_type))
        tangents_out = [
            ad.p2tz(p) if isinstance(t, ad.Zero) else next(marked) for p, t in zip(primals, tangents, strict=True)
        ]
        return primals_out, tangents_out

    return jvp


def _make_transpose(pipeline_p: Primitive) -> Callable[..., Any]:
    def transpose(cotangents: Sequence[Any], *operands: Any, name: str, mark_type: str) -> list[Any]:
        # What starts a layer in the forward pass ends it in the backward pass.
        transposed_mark_type = _one_of(mark_type, {"start": "end", "end": "start"})
        marked = iter(pipeline_p.bind(*_nonzero(cotangents), name=f"{name}_backward", mark_type=transposed_mark_type))
        return [ct if isinstance(ct, ad.Zero) else next(marked) for ct in cotangents]

    return transpose


def _make_batcher(pipeline_p: Primitive) -> Callable[..., Any]:
    def batcher(operands: Sequence[Any], dims: Sequence[Any], *, name: str, mark_type: str) -> tuple[Any, Any]:
        return pipeline_p.bind(*operands, name=name, mark_type=mark_type), dims

    return batcher


def _nonzero(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if not isinstance(value, ad.Zero)]


def _one_of(mark_type: str, new: dict[str, str]) -> str:
    kind = mark_type.removeprefix("jvp_")
    if kind not in new:
        raise ValueError(f"A pipeline marker of the kind {mark_type!r} cannot be differentiated")
    return new[kind]
