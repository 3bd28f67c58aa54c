"""Replacements in `alpa.pipeline_parallel.apply_grad`: a scalar that is summed over meshes, in jaxprs and in modules.

Takes alpa's primitive `cross_mesh_allreduce_p` and gives it what current JAX wants of a primitive, and a lowering to
one `stablehlo.optimization_barrier` with the attribute `alpa.cross_mesh` = `operation;meshes`, where the fork of XLA
had a custom call. There the program is cut into phases (`xla_extension.phases`). The passes that choose shardings take
the mark as the barrier that it is.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from jax._src import core
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo
from jax.extend.core import ClosedJaxpr

from alpa_cfp.spmd.module.stages import EXCHANGE
from alpa_on_jax import errors
from alpa_on_jax.alpa.micro_batch_values import How
from alpa_on_jax.alpa.tracing import values_of_micro_batches
from alpa_on_jax.replacing import replace, replace_in_class


def apply(module: ModuleType) -> None:
    """Register the rules of `cross_mesh_allreduce_p`, and let its parameters be hashable, as JAX wants them."""
    rewrite_eqns = module.ApplyGradRewriter._rewrite_eqns

    def _rewrite_eqns(
        self: Any,
        primitive: core.Primitive,
        mesh_vars: Sequence[Sequence[core.Atom]],
        gensym_fn: Callable[[core.AbstractValue], core.Var],
        outvar: core.Var,
        literals: Sequence[core.Literal],
    ) -> tuple[list[core.JaxprEqn], list[int]]:
        """The equations that put an all-reduce over meshes, the last of them, in the place of a chain of sums.

        Alpa gives the constants of a chain to the first mesh, which may have nothing else to add; here they are added
        on the first that has.
        """
        variables = [[var for var in each if not isinstance(var, core.Literal)] for each in mesh_vars]
        literals = [*literals, *(var for each in mesh_vars for var in each if isinstance(var, core.Literal))]
        eqns, mesh_ids = rewrite_eqns(self, primitive, variables, gensym_fn, outvar, literals)
        *before, reduce = eqns
        return [*before, reduce.replace(params={**reduce.params, "group_meshes": tuple(mesh_ids)})], mesh_ids

    def lower(
        ctx: mlir.LoweringRuleContext,
        operand: ir.Value,
        *,
        type: core.Primitive,
        group_meshes: Sequence[int],
    ) -> Sequence[ir.Value]:
        barrier = hlo.OptimizationBarrierOp([operand])
        what = module._primitive_to_str[type] + b";" + module.mesh_ids_hash(group_meshes)
        barrier.operation.attributes[EXCHANGE] = ir.StringAttr.get(what.decode())
        return barrier.results

    split_original = module.split_compute_grad_and_apply_grad

    def split_compute_grad_and_apply_grad(
        closed_jaxpr: ClosedJaxpr,
        gensym_fn: Callable[[core.AbstractValue], core.Var],
        num_microbatch: int,
        inference_mode: bool,
    ) -> Any:
        """As alpa's own.

        Raises:
            errors.MicroBatchError: a value of micro-batches is no mean; a pipeline only averages.
        """
        check_means(closed_jaxpr)
        return split_original(closed_jaxpr, gensym_fn, num_microbatch, inference_mode)

    module.cross_mesh_allreduce_p.def_abstract_eval(lambda *operands, **params: operands[0])
    mlir.register_lowering(module.cross_mesh_allreduce_p, lower)
    replace(module, split_compute_grad_and_apply_grad)
    replace_in_class(module.ApplyGradRewriter, _rewrite_eqns)


def check_means(closed: ClosedJaxpr) -> None:
    """Hold that what passes the gradients' mark of a traced micro-batch is a mean, or the same in all.

    Raises:
        errors.MicroBatchError: a value is something else.
    """
    for mark in (eqn for eqn in closed.jaxpr.eqns if eqn.params.get("mark_type") == "grad"):
        combined = values_of_micro_batches(closed, mark.invars)
        for number, (value, each) in enumerate(zip(mark.invars, combined, strict=True)):
            is_flag = str(getattr(value.aval, "dtype", "")) == "bool"
            if each.how is not How.MEAN and (each.how is not How.SAME or is_flag):
                raise errors.MicroBatchError.in_pipeline(number, value.aval.str_short(), each.how.value)
