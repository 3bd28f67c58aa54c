"""The partitioner made of Shardy's passes and of a rewriting of ours: from an annotated module to one device's program.

Shardy's passes make the communication explicit in the global program; `localize` makes each device's program of that.
What no handler covers (see `local_ops`) raises UnsupportedByShardyError.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import WORKED_DIMS, Dims
from alpa_cfp.spmd.ir.random_ops import add_state_parameter
from alpa_cfp.spmd.module.combiner_limits import CombinerLimits
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.module.partitioned import (
    Collective,
    PartitionedProgram,
    UnsupportedByShardyError,
    collectives_of_block,
)
from alpa_cfp.spmd.partition import (
    local_branches,
    local_collectives,
    local_contractions,
    local_indexing,
    local_islands,
    local_loops,
    local_ops,
)
from alpa_cfp.spmd.partition.combine_collectives import combine_collectives
from alpa_cfp.spmd.partition.grad_sync import defer_reductions
from alpa_cfp.spmd.partition.local_context import LocalContext
from alpa_cfp.spmd.partition.local_dispatch import localize_op
from alpa_cfp.spmd.partition.local_loops import settle_loops
from alpa_cfp.spmd.partition.reduce_scatters import make_reduce_scatters
from alpa_cfp.spmd.partition.simplify_collectives import merge_sums, share_collectives, transpose_first
from alpa_cfp.spmd.partition.sums_after_loops import sum_after_loops
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh
from alpa_cfp.spmd.shardings.sharding_rules import run_shardy_passes
from alpa_cfp.spmd.simplify import simplify

# The modules register their handlers when they are imported.
_REGISTERED = (
    local_ops, local_contractions, local_indexing, local_collectives, local_loops, local_branches, local_islands,
)  # fmt: skip
# Gives what auto-sharding left open (constants, for one) the sharding of its users, and makes constraints reshards.
_PROPAGATE = "sdy-propagation-pipeline"
_TO_COLLECTIVES = (
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true}),func.func(sdy-reshard-to-collectives)"
)


def partition_with_shardy(
    module: HloModule, accumulators: Iterable[int], *, whole_dims: bool = False, whole_ops: bool = False
) -> PartitionedProgram:
    """Make one device's program of an annotated module.

    Args:
        module: The annotated module.
        accumulators: Results of the form `old + gradient` whose reduction over devices is left to the caller, as far
            as it can be (see `grad_sync`).
        whole_dims: Whether to gather dims that an op or a loop works along instead of refusing them.
        whole_ops: Whether to compute an op whole on every device (see `local_dispatch`) instead of refusing it.

    Raises:
        UnsupportedByShardyError: the module, or the way in which it is sharded, is not covered.
    """
    mesh, inputs, outputs = module.mesh, module.input_shardings, module.output_shardings
    if mesh is None or inputs is None or outputs is None:
        raise ValueError("partitioning needs an annotated module: run the auto-sharding pass on it first")

    def change(parsed: Any) -> tuple[tuple[Collective, ...], list[tuple[Axis, ...]], bool]:
        main = mlir.main_function(parsed)
        annotations.set_boundary(main, inputs, outputs)
        _make_even(main, mesh)
        if module.solved and not module.propagated:
            run_shardy_passes(parsed, _PROPAGATE)
            main = mlir.main_function(parsed)
            annotations.set_boundary(main, inputs, outputs)
            _make_even(main, mesh)
        if whole_dims:
            make_worked_dims_whole(main, mesh)
        settle_loops(parsed, mesh, whole=whole_dims or whole_ops)
        run_shardy_passes(parsed, _TO_COLLECTIVES)
        main = mlir.main_function(parsed)
        sum_after_loops(mlir.entry_block(main), mesh)
        unreduced = defer_reductions(main, mesh, accumulators)
        if module.solved:
            make_reduce_scatters(main, mesh)
        limits = module.combiner_limits if module.solved else None
        collectives = localize(parsed, mesh, inputs, outputs, limits, whole_ops=whole_ops)
        return collectives, unreduced, len(mlir.entry_block(mlir.main_function(parsed)).arguments) > len(inputs)

    try:
        bytecode, (collectives, unreduced, draws_random) = mlir.edit(module.bytecode, change)
    except ir.MLIRError as error:
        raise UnsupportedByShardyError(f"a pass failed: {str(error).splitlines()[-1]}") from error
    return PartitionedProgram(
        "shardy", bytecode, mesh, inputs, outputs, tuple(unreduced), collectives, draws_random=draws_random
    )


def localize(
    module: Any,
    mesh: LogicalMesh,
    inputs: Sequence[ArraySharding],
    outputs: Sequence[ArraySharding],
    limits: CombinerLimits | None = None,
    *,
    whole_ops: bool = False,
) -> tuple[Collective, ...]:
    """Rewrite a global program with explicit reshards into the program that each device runs, in place.

    The module comes from Shardy's `sdy-insert-explicit-reshards` and `sdy-reshard-to-collectives`, and gets local
    shapes, StableHLO collectives over replica groups, and nothing of Shardy. This takes the place of Shardy's own
    `sdy-convert-global-to-local`, which in jaxlib 0.10.2 sums where a maximum is wanted and corrupts split constants.
    The invariant is that of `local_ops`.

    Returns:
        The communication of the program.

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
    if limits is None:
        module.operation.verify()
    else:
        # Parts have dims of size 1 that the whole had not, and contractions are next to their transposes now.
        simplify(module)
    return collectives_of_block(mlir.entry_block(mlir.main_function(module)))


def _check_results(ctx: LocalContext, op: Operation, outputs: Sequence[ArraySharding]) -> None:
    ctx.require_reduced(op)
    for i, (operand, sharding) in enumerate(zip(op.operands, outputs, strict=True)):
        if ctx.sharding(operand).dims != sharding.dims:
            raise UnsupportedByShardyError(f"result {i} is {ctx.sharding(operand).to_sdy()}, not {sharding.to_sdy()}")


def _drop_annotations(module: Any, main: Operation) -> None:
    for op in mlir.block_operations(module.body):
        if op.name == "sdy.mesh":
            op.erase()
    for kind in ("arg_attrs", "res_attrs"):
        attributes = mlir.function_arguments_attributes(main, kind)
        for attribute in attributes:
            attribute.pop(annotations.SHARDING, None)
        mlir.set_function_arguments_attributes(main, kind, attributes)
    for op in mlir.inner_operations(main):
        attributes = op.attributes
        if len(attributes):
            for name in [name for name in attributes if name.startswith("sdy.")]:
                del attributes[name]


def _make_even(main: Operation, mesh: LogicalMesh) -> None:
    """Drop the splits of intermediate values that do not divide them; resharding around them is then explicit."""
    for op in mlir.inner_operations(main):
        if annotations.SHARDING not in op.attributes:
            continue
        shardings = annotations.result_shardings(op, mesh)
        if all(sharding.is_replicated for sharding in shardings):
            continue
        even = [
            sharding.dividing(mlir.tensor_shape(value)) if sharding.dims else sharding
            for sharding, value in zip(shardings, op.results, strict=True)
        ]
        if even != shardings:
            annotations.set_result_shardings(op, even)


def make_worked_dims_whole(main: Operation, mesh: LogicalMesh) -> None:
    """Reshard around every op of `main` that works along a split dim, so that the dim is whole there.

    Shardy's passes insert no communication for an op that moves elements along a dim (`slice`, `concatenate`, `pad`,
    ...) or that has no rule for it (an argmax), so `localize` refuses these when the dim is split. XLA's partitioner
    exchanges just the elements that are needed, so it is the better choice for such a program, unless its gradients'
    reductions have to be moved. Only shardings of values change.
    """
    shardings = dict(zip(mlir.entry_block(main).arguments, annotations.boundary(main, mesh)[0], strict=True))
    for op in mlir.block_operations(mlir.entry_block(main)):
        results = annotations.result_shardings(op, mesh)
        if op.name in WORKED_DIMS:
            dims = WORKED_DIMS[op.name](op)
            _gather_operands(op, shardings, dims)
            if op.name != "stablehlo.reduce":  # a reduced dim is not a dim of the result
                results = [sharding.without_dims(dims) for sharding in results]
                annotations.set_result_shardings(op, results)
        shardings.update(zip(op.results, results, strict=True))


def _gather_operands(op: Operation, shardings: dict[Value, ArraySharding], dims: Dims) -> None:
    rank = max(mlir.tensor_type(operand).rank for operand in op.operands)
    for i, operand in enumerate(op.operands):
        own = shardings.get(operand)
        if own is None or len(own.dims) != rank or not any(own.dims[dim] for dim in dims):
            continue
        whole = own.without_dims(dims)
        with ir.InsertionPoint(op), op.location:
            resharded = sdy.reshard(operand, mlir.attribute(whole.to_sdy()))
        op.operands[i] = resharded
        shardings[resharded] = whole
