"""Bring a program into the form on which auto-sharding enumerates strategies, and which compilers take best.

Takes a StableHLO module of one function and rewrites it in place. Afterwards every matrix product is canonical
(`dots`), equal values are computed once (`merging`), and what computes nothing is gone (`layout`, `arithmetic`,
`reductions`). Invariant: the module computes the same values, but for the order of sums and
products with constants and the sign of zero. Alpa ran XLA's own simplification passes here, before its pass
(`RunAutoShardingPass` in the forked jaxlib); of these it does what changes the programs of training steps.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.simplify import arithmetic, dots, layout, reductions
from alpa_cfp.spmd.simplify.dots import is_canonical_dot
from alpa_cfp.spmd.simplify.merging import merge_equal_values
from alpa_cfp.spmd.simplify.rewriting import Rule, rewrite

__all__ = ["is_canonical_dot", "simplify"]

_RULES: Mapping[str, Sequence[Rule]] = {
    "stablehlo.add": (arithmetic.fold_constants, arithmetic.drop_neutral_operand),
    "stablehlo.and": (arithmetic.drop_neutral_operand,),
    "stablehlo.broadcast_in_dim": (layout.simplify_broadcast,),
    "stablehlo.clamp": (arithmetic.spread_scalars,),
    "stablehlo.concatenate": (layout.simplify_concatenate,),
    "stablehlo.convert": (arithmetic.simplify_convert,),
    "stablehlo.divide": (arithmetic.fold_constants, arithmetic.drop_neutral_operand),
    "stablehlo.dot_general": (dots.make_dot_canonical,),
    "stablehlo.dynamic_slice": (layout.simplify_dynamic_slice,),
    "stablehlo.dynamic_update_slice": (layout.simplify_dynamic_update_slice,),
    "stablehlo.maximum": (arithmetic.drop_neutral_operand,),
    "stablehlo.minimum": (arithmetic.drop_neutral_operand,),
    "stablehlo.multiply": (arithmetic.fold_constants, arithmetic.drop_neutral_operand, arithmetic.merge_scalings),
    "stablehlo.negate": (arithmetic.undo_inverse,),
    "stablehlo.not": (arithmetic.undo_inverse,),
    "stablehlo.or": (arithmetic.drop_neutral_operand,),
    "stablehlo.pad": (layout.simplify_pad,),
    "stablehlo.reduce": (
        reductions.reduce_nothing,
        reductions.reduce_a_reduction,
        reductions.reduce_under_transpose,
        reductions.reduce_under_reshape,
    ),
    "stablehlo.reshape": (layout.simplify_reshape,),
    "stablehlo.select": (arithmetic.simplify_select, arithmetic.spread_scalars),
    "stablehlo.slice": (layout.simplify_slice,),
    "stablehlo.sqrt": (arithmetic.fold_constants,),
    "stablehlo.subtract": (arithmetic.fold_constants, arithmetic.drop_neutral_operand),
    "stablehlo.transpose": (layout.simplify_transpose, dots.exchange_operands),
}


def simplify(module: Any) -> None:
    """Simplify `module`, an `ir.Module` with one function `main`, in place; its context must be the current one.

    Operations of `module` are erased: handles to them that the caller still has must not be used afterwards.
    """
    merge_equal_values(module)
    rewrite(mlir.entry_block(mlir.main_function(module)), _RULES)
    merge_equal_values(module)
