"""Rewrite an annotated global program with explicit reshards into the program that each device runs.

Input: a module after Shardy's `sdy-insert-explicit-reshards` and `sdy-reshard-to-collectives`. Output: the same module,
with local shapes, StableHLO collectives over replica groups, and nothing of Shardy left. It takes the place of Shardy's
own `sdy-convert-global-to-local`, which in jaxlib 0.10.2 sums where a maximum is wanted and corrupts split constants.
Invariant: see `local_ops`; what no handler covers raises UnsupportedByShardyError.
"""

from collections.abc import Sequence
from typing import Any

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.random_ops import add_state_parameter
from alpa_cfp.spmd.module.combiner_limits import CombinerLimits
from alpa_cfp.spmd.module.partitioned import Collective, UnsupportedByShardyError, collectives_of_block
from alpa_cfp.spmd.partition import local_collectives, local_contractions, local_indexing, local_loops, local_ops
from alpa_cfp.spmd.partition.combine_collectives import combine_collectives
from alpa_cfp.spmd.partition.local_context import LocalContext
from alpa_cfp.spmd.partition.local_dispatch import localize_op
from alpa_cfp.spmd.partition.simplify_collectives import merge_sums, share_collectives, transpose_first
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp.spmd.simplify import simplify

# The modules register their handlers when they are imported.
_REGISTERED = (local_ops, local_contractions, local_indexing, local_collectives, local_loops)


def localize(
    module: Any,
    mesh: LogicalMesh,
    inputs: Sequence[ArraySharding],
    outputs: Sequence[ArraySharding],
    limits: CombinerLimits | None = None,
    *,
    whole_ops: bool = False,
) -> tuple[Collective, ...]:
    """Rewrite `module` in place and return its communication.

    Args:
        module: The global program with collectives.
        mesh: The logical mesh.
        inputs, outputs: The shardings of the parameters and results.
        limits: Up to which sizes independent collectives are combined; None combines none.
        whole_ops: Whether an op that is not covered is computed whole on every device.

    Raises:
        UnsupportedByShardyError: an op, or the way in which it is split, is not covered.
    """
    main = mlir.main_function(module)
    block = mlir.entry_block(main)
    arguments = list(block.arguments)
    ctx = LocalContext(mesh, block, add_state_parameter(main))
    for argument, sharding in zip(arguments, inputs, strict=True):
        ctx.localize(argument, sharding)
    for op in mlir.block_operations(block):
        if op.name == "func.return":
            _check_results(ctx, op, outputs)
            break
        localize_op(ctx, op, whole=whole_ops)
    merge_sums(block)
    transpose_first(block)
    if limits is not None:
        share_collectives(block)
        combine_collectives(block, limits)
    mlir.update_function_type(main)
    _drop_annotations(module, main)
    module.operation.verify()
    if limits is not None:
        # Parts have dims of size 1 that the whole had not, and contractions are next to their transposes now.
        simplify(module)
    return collectives_of_block(mlir.entry_block(mlir.main_function(module)))


def _check_results(ctx: LocalContext, op: mlir.Operation, outputs: Sequence[ArraySharding]) -> None:
    ctx.require_reduced(op)
    for i, (operand, sharding) in enumerate(zip(op.operands, outputs, strict=True)):
        if ctx.sharding(operand).dims != sharding.dims:
            raise UnsupportedByShardyError(f"result {i} is {ctx.sharding(operand).to_sdy()}, not {sharding.to_sdy()}")


def _drop_annotations(module: Any, main: mlir.Operation) -> None:
    for op in mlir.block_operations(module.body):
        if op.name == "sdy.mesh":
            op.erase()
    for kind in ("arg_attrs", "res_attrs"):
        attributes = mlir.function_arguments_attributes(main, kind)
        for attribute in attributes:
            attribute.pop(annotations.SHARDING, None)
        mlir.set_function_arguments_attributes(main, kind, attributes)
    for op in mlir.inner_operations(main):
        for name in [name for name in op.attributes if name.startswith("sdy.")]:
            del op.attributes[name]
