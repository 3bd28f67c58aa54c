"""Sharding rules for elementwise ops that Shardy has none for (`chlo.erf` and its like), and Shardy's passes with them.

Shardy's passes stop at an op without a rule. They take an op's `sdy.sharding_rule` attribute where it has one, so each
such op is given the rule of an elementwise op, under its own name: no pass ever sees another op in its place. The
passes drop all rules in the end; therefore they run through `run_shardy_passes`, which gives the rules each time.
Invariant: nothing but `sdy` attributes and ops, and what the passes themselves do, changes in a module.

Source: Shardy, `shardy/dialect/sdy/transforms/propagation/op_sharding_rule_registry.cc` (`getOrCreateShardingRule`).
"""

from typing import Any

from jaxlib.mlir.dialects import sdy

from alpa_on_jax.xla_extension import mlir
from alpa_on_jax.xla_extension.mlir import Operation

RULE = "sdy.sharding_rule"

# CHLO ops that compute each element of the result from the elements at the same place of the operands.
RULELESS_ELEMENTWISE = frozenset(
    f"chlo.{name}"
    for name in (
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan_exp",
        "atanh",
        "bessel_i1e",
        "conj",
        "cosh",
        "digamma",
        "erf",
        "erf_inv",
        "erfc",
        "is_inf",
        "is_neg_inf",
        "is_pos_inf",
        "lgamma",
        "next_after",
        "polygamma",
        "sinh",
        "square",
        "tan",
        "zeta",
    )
)


def run_shardy_passes(module: Any, pipeline: str) -> None:
    """Run a pipeline of Shardy's passes on `module` in place, with a rule for each op of `RULELESS_ELEMENTWISE`.

    Raises:
        ir.MLIRError: a pass failed, or the module is not valid.
    """
    for function in mlir.functions(module).values():
        for op in mlir.walk(mlir.entry_block(function)):
            if op.name in RULELESS_ELEMENTWISE:
                op.attributes[RULE] = _elementwise_rule(op)
    mlir.run_passes(module, pipeline)


def _elementwise_rule(op: Operation) -> Any:
    """The rule of `op`: a factor for each dim, which all operands and results have alike."""
    shape = mlir.tensor_shape(op.results[0])
    dims = sdy.TensorMappingAttr.get([sdy.DimMappingAttr.get([factor]) for factor in range(len(shape))])
    return sdy.OpShardingRuleAttr.get(list(shape), [dims] * len(op.operands), [dims] * len(op.results))
