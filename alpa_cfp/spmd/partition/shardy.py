"""The partitioner made of Shardy's passes and `localize`: from an annotated module to one device's program."""

from collections.abc import Iterable
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import WORKED_DIMS, Dims
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.module.partitioned import Collective, PartitionedProgram, UnsupportedByShardyError
from alpa_cfp.spmd.partition.grad_sync import defer_reductions
from alpa_cfp.spmd.partition.local_loops import settle_loops
from alpa_cfp.spmd.partition.localize import localize
from alpa_cfp.spmd.partition.reduce_scatters import make_reduce_scatters
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh
from alpa_cfp.spmd.shardings.sharding_rules import run_shardy_passes

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
        whole_dims: Whether to gather dims that an op works along instead of refusing them.
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
        settle_loops(parsed, mesh, whole=whole_ops)
        run_shardy_passes(parsed, _TO_COLLECTIVES)
        main = mlir.main_function(parsed)
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


def _make_even(main: Operation, mesh: LogicalMesh) -> None:
    """Drop the splits of intermediate values that do not divide them; resharding around them is then explicit."""
    for op in mlir.inner_operations(main):
        if annotations.SHARDING not in op.attributes:
            continue
        shardings = annotations.result_shardings(op, mesh)
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
            _gather_operands(op, mesh, shardings, dims)
            if op.name != "stablehlo.reduce":  # a reduced dim is not a dim of the result
                results = [sharding.without_dims(dims) for sharding in results]
                annotations.set_result_shardings(op, results)
        shardings.update(zip(op.results, results, strict=True))


def _gather_operands(op: Operation, mesh: LogicalMesh, shardings: dict[Value, ArraySharding], dims: Dims) -> None:
    rank = max(mlir.tensor_type(operand).rank for operand in op.operands)
    for i, operand in enumerate(op.operands):
        own = shardings.get(operand)
        if own is None or len(own.dims) != rank or not any(own.dims[dim] for dim in dims):
            continue
        whole = own.without_dims(dims)
        with ir.InsertionPoint(op), op.location:
            resharded = sdy.reshard(operand, ir.Attribute.parse(whole.to_sdy()))
        op.operands[i] = resharded
        shardings[resharded] = whole
