"""Islands (`spmd.shardings.islands`) in one device's program: what each device computes there already.

Takes an `sdy.manual_computation` with local operands; puts its body in its place. Collectives of the body are those of
partitions where JAX makes them, and of replicas here; the numbers of devices are the same.
"""

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.partition.local_context import LocalContext
from alpa_cfp.spmd.partition.local_ops import handles, require
from alpa_cfp.spmd.shardings.islands import ISLAND, operand_shardings
from alpa_cfp.spmd.shardings.sharding import ArraySharding

_CHANNEL, _GLOBAL_IDS = "channel_handle", "use_global_device_ids"
_PARTITION = "stablehlo.partition_id"


@handles(ISLAND)
def _island(ctx: LocalContext, op: Operation, shardings: list[ArraySharding]) -> None:
    for operand, asked in zip(op.operands, operand_shardings(op, ctx.mesh), strict=True):
        require(ctx.sharding(operand).dims == asked.dims, op, "an operand is not where it is asked for")
    block = op.regions[0].blocks[0]
    mapping: dict[Value, Value] = dict(zip(block.arguments, op.operands, strict=True))
    results: Sequence[Value] = ()
    with ir.InsertionPoint(op):
        for inner in mlir.block_operations(block):
            if inner.name == "sdy.return":
                results = [mapping.get(value, value) for value in inner.operands]
            elif inner.name == _PARTITION:
                mapping[inner.results[0]] = stablehlo.replica_id()
            else:
                clone = mlir.clone_into(inner, mapping)
                for each in (clone, *mlir.inner_operations(clone)):
                    _use_replicas(ctx, each)
    for result, value, sharding in zip(op.results, results, shardings, strict=True):
        own = value
        if ctx.known_sharding(value) is not None:  # an operand, or a result twice: it may lie in another way now
            with ir.InsertionPoint(op), op.location:
                own = stablehlo.optimization_barrier([value])
        result.replace_all_uses_with(own)
        ctx.set_sharding(own, sharding)
    op.erase()


def _use_replicas(ctx: LocalContext, op: Operation) -> None:
    if _CHANNEL in op.attributes:
        if _GLOBAL_IDS in op.attributes:
            op.attributes[_CHANNEL] = ctx.channel([[0]])[_CHANNEL]
        else:
            del op.attributes[_CHANNEL]
    if op.name == _PARTITION:
        with ir.InsertionPoint(op), op.location:
            mlir.replace(op, stablehlo.replica_id())
