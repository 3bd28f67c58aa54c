"""Gather the dims along which an op works, where Shardy would leave them split.

Shardy's passes insert no communication for an op that moves elements along a dim (`slice`, `concatenate`, `pad`, ...)
or that has no rule for it (an argmax), so `localize` refuses these when the dim is split. XLA's partitioner exchanges
just the elements that are needed, so it is the better choice for such a program, unless its gradients' reductions have
to be moved. Then this pass makes the dims whole around these ops. Invariant: only shardings of values change.
"""

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.worked_dims import WORKED_DIMS, Dims
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh


def make_worked_dims_whole(main: Operation, mesh: LogicalMesh) -> None:
    """Reshard around every op of `main` that works along a split dim."""
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
            reshard = mlir.create(
                "sdy.reshard", [operand.type], [operand], {"sharding": ir.Attribute.parse(whole.to_sdy())}
            )
        op.operands[i] = reshard.results[0]
        shardings[reshard.results[0]] = whole
