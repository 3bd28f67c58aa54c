"""Compute equal values once, and values that nothing uses not at all.

Takes a module. Invariants: random ops and custom calls with side effects all stay; so does every pipeline marker, and
every exchange with other meshes (which wait for it), with its attributes, operands and results, also where nothing uses
it.
"""

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.stages import EXCHANGE, MARKER

_BARRIER = "stablehlo.optimization_barrier"
_NUMBER = "alpa.marker_number"
_KEEPER = "alpa.keep_marker"


def merge_equal_values(module: Any) -> None:
    """Run MLIR's removal of unused values and its common subexpression elimination on `module` in place."""
    shielded = shield_markers(mlir.entry_block(mlir.main_function(module)))
    mlir.run_passes(module, "trivial-dce,cse", verifies_result=False)
    if shielded:
        unshield_markers(mlir.entry_block(mlir.main_function(module)))


def shield_markers(block: Any) -> bool:
    """Make each marker unlike every other, and used by a call with a side effect, one at the end for all of them.

    To MLIR a barrier is a pure function: it would drop one that nothing uses and merge two of equal operands.

    Returns:
        Whether there are markers.
    """
    markers = [
        op
        for op in mlir.block_operations(block)
        if op.name == _BARRIER and (MARKER in op.attributes or EXCHANGE in op.attributes)
    ]
    for number, marker in enumerate(markers):
        marker.attributes[_NUMBER] = mlir.i64(number)
    if markers:
        kept = [value for marker in markers for value in marker.results]
        with ir.InsertionPoint.at_block_terminator(block), ir.Location.unknown():
            stablehlo.custom_call([], kept, _KEEPER, has_side_effect=True)
    return bool(markers)


def unshield_markers(block: Any) -> None:
    """Undo `shield_markers`."""
    for op in mlir.block_operations(block):
        if op.name == _BARRIER and _NUMBER in op.attributes:
            del op.attributes[_NUMBER]
        elif op.name == "stablehlo.custom_call" and mlir.call_target(op) == _KEEPER:
            op.erase()
