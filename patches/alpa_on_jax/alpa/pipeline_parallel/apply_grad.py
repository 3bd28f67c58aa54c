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

from alpa_on_jax.replacing import replace_in_class
from alpa_on_jax.xla_extension.stages import EXCHANGE


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

    module.cross_mesh_allreduce_p.def_abstract_eval(lambda *operands, **params: operands[0])
    mlir.register_lowering(module.cross_mesh_allreduce_p, lower)
    replace_in_class(module.ApplyGradRewriter, _rewrite_eqns)
