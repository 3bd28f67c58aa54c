"""Bring a program into the form on which auto-sharding enumerates strategies, and which compilers take best.

Takes a StableHLO module of one function and rewrites it in place. Afterwards every matrix product is canonical
(`dots`), equal values are computed once (`merging`), and what computes nothing is gone (`layout`, `arithmetic`,
`folding`, `reductions`, `slicing`). Invariant: the module computes the same values, but for the order of sums and
products with constants and the sign of zero. Alpa ran XLA's own simplification passes here, before its pass
(`RunAutoShardingPass` in the forked jaxlib); of these it does what changes the programs of training steps.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.simplify import arithmetic, dots, folding, layout, reductions, slicing
from alpa_cfp.spmd.simplify.dots import is_canonical_dot
from alpa_cfp.spmd.simplify.merging import merge_equal_values
from alpa_cfp.spmd.simplify.rewriting import Rule, rewrite

__all__ = ["is_canonical_dot", "simplify"]

_RULES: Mapping[str, Sequence[Rule]] = {
    "stablehlo.add": (folding.fold_constants, arithmetic.simplify_add),
    "stablehlo.and": (arithmetic.simplify_and,),
    "stablehlo.broadcast_in_dim": (layout.simplify_broadcast,),
    "stablehlo.clamp": (arithmetic.spread_scalars,),
    "stablehlo.concatenate": (slicing.simplify_concatenate,),
    "stablehlo.convert": (arithmetic.simplify_convert,),
    "stablehlo.divide": (folding.fold_constants, arithmetic.simplify_divide),
    "stablehlo.dot_general": (dots.make_dot_canonical,),
    "stablehlo.dynamic_slice": (slicing.simplify_dynamic_slice,),
    "stablehlo.dynamic_update_slice": (slicing.simplify_dynamic_update_slice,),
    "stablehlo.maximum": (arithmetic.simplify_maximum,),
    "stablehlo.minimum": (arithmetic.simplify_minimum,),
    "stablehlo.multiply": (folding.fold_constants, arithmetic.simplify_multiply, folding.merge_scalings),
    "stablehlo.negate": (arithmetic.simplify_negate,),
    "stablehlo.not": (arithmetic.simplify_not,),
    "stablehlo.or": (arithmetic.simplify_or,),
    "stablehlo.pad": (slicing.simplify_pad,),
    "stablehlo.reduce": (
        reductions.reduce_nothing,
        reductions.reduce_a_reduction,
        reductions.reduce_under_transpose,
        reductions.reduce_under_reshape,
    ),
    "stablehlo.reshape": (layout.simplify_reshape,),
    "stablehlo.select": (arithmetic.simplify_select, arithmetic.spread_scalars),
    "stablehlo.slice": (slicing.simplify_slice,),
    "stablehlo.sqrt": (folding.fold_constants,),
    "stablehlo.subtract": (folding.fold_constants, arithmetic.simplify_subtract),
    "stablehlo.transpose": (layout.simplify_transpose, dots.exchange_operands),
}


def simplify(module: Any) -> None:
    """Simplify `module`, an `ir.Module` with one function `main`, in place; its context must be the current one.

    Operations of `module` are erased: handles to them that the caller still has must not be used afterwards.
    """
    merge_equal_values(module)
    rewrite(mlir.entry_block(mlir.main_function(module)), _RULES)
    merge_equal_values(module)
