"""Ops that are elementwise but that Shardy has no sharding rule for (`chlo.erf` and its like).

Shardy's passes stop at an op without a rule. `hide` lets an elementwise StableHLO op of the same signature stand in
for each of them, with the real name in an attribute; `restore` puts the real ones back. Invariant:
`restore(hide(m))` is `m`. Between the two the module is only propagated and annotated, never folded, compiled or run.
"""

from typing import Any

from jaxlib.mlir import ir

from alpa_on_jax.xla_extension import mlir

STANDS_FOR = "alpa.stands_for"

# CHLO ops that compute each element of the result from the elements at the same place of the operands.
_ELEMENTWISE = frozenset(
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


def hide(module: Any) -> int:
    """Replace every rule-less elementwise op of `module` by its stand-in and return how many there were."""
    count = 0
    for op in list(mlir.walk(mlir.entry_block(mlir.main_function(module)))):
        if op.name in _ELEMENTWISE and (stand_in := _stand_in(op)) is not None:
            attributes = {name: op.attributes[name] for name in op.attributes}
            _replace(op, stand_in, attributes | {STANDS_FOR: ir.StringAttr.get(op.name)})
            count += 1
    return count


def restore(module: Any) -> None:
    """Put the real ops back in place of their stand-ins."""
    for op in list(mlir.walk(mlir.entry_block(mlir.main_function(module)))):
        if STANDS_FOR in op.attributes:
            attributes = {name: op.attributes[name] for name in op.attributes if name != STANDS_FOR}
            _replace(op, ir.StringAttr(op.attributes[STANDS_FOR]).value, attributes)


def _stand_in(op: Any) -> str | None:
    """A StableHLO op that has a rule, whatever its operand types are, and that takes and gives the same types."""
    if op.results[0].type == op.operands[0].type:
        return "stablehlo.negate" if len(op.operands) == 1 else "stablehlo.add"
    return "stablehlo.is_finite" if len(op.operands) == 1 and op.name.startswith("chlo.is_") else None


def _replace(op: Any, name: str, attributes: dict[str, Any]) -> None:
    with ir.InsertionPoint(op), op.location:
        new = mlir.create(name, [result.type for result in op.results], list(op.operands), attributes)
    for old_result, new_result in zip(op.results, new.results, strict=True):
        old_result.replace_all_uses_with(new_result)
    op.erase()
