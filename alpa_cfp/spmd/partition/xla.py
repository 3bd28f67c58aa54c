"""XLA's own partitioner: the annotated module goes to the compiler as it is, with the shardings of inputs and outputs.

It covers every program that JAX can shard, and is used where Shardy's passes do not reach. The partitioning itself
happens inside `compile_and_load`, with Shardy's propagation in XLA. Where auto-sharding has decided the sharding of
every op, each decision goes along as a constraint, which is the only form in which the compiler keeps it. What that
partitioner gets wrong it is kept from (`whole_for_xla`).
"""

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from alpa_cfp.spmd.ir import mlir, random_ops
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.module.partitioned import PartitionedProgram
from alpa_cfp.spmd.partition.whole_for_xla import make_whole_for_xla
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh

_CONSTANTS = ("stablehlo.constant", "sdy.constant")


def leave_to_xla(module: HloModule, reason: str) -> PartitionedProgram:
    """The program that XLA partitions while it compiles.

    Args:
        module: The annotated module.
        reason: Why Shardy's passes did not partition it.
    """
    mesh, inputs, outputs = module.mesh, module.input_shardings, module.output_shardings
    if mesh is None or inputs is None or outputs is None:
        raise ValueError("partitioning needs an annotated module: run the auto-sharding pass on it first")

    def change(parsed: Any) -> bool:
        main = mlir.main_function(parsed)
        shardings = dict(zip(mlir.entry_block(main).arguments, inputs, strict=True))
        shardings |= _shardings(main, mesh)
        for op in mlir.inner_operations(main):
            # The compiler ignores annotations on ordinary ops, and does not know Shardy's constants.
            if annotations.SHARDING in op.attributes:
                if module.solved and op.parent == main:
                    _constrain_results(op, annotations.result_shardings(op, mesh))
                del op.attributes[annotations.SHARDING]
            if op.name == "sdy.constant":
                annotations.make_plain_constant(op)
            elif op.name == "sdy.reshard":
                # The compiler does not know reshards.
                with ir.InsertionPoint(op), op.location:
                    mlir.replace(op, sdy.sharding_constraint(op.operands[0], op.attributes["sharding"]))
        make_whole_for_xla(main, shardings | _shardings(main, mesh))
        annotations.set_boundary(main, inputs, outputs)
        state = random_ops.add_state_parameter(main)
        if state is None:
            return False
        random_ops.expand_whole(main, state)
        return True

    bytecode, draws_random = mlir.edit(module.bytecode, change)
    return PartitionedProgram(
        "xla",
        bytecode,
        mesh,
        inputs,
        outputs,
        ((),) * len(outputs),
        draws_random=draws_random,
        fallback_reason=reason,
    )


def _shardings(main: Operation, mesh: LogicalMesh) -> dict[Value, ArraySharding]:
    """The shardings of ops' results, as far as the ops have annotations."""
    found: dict[Value, ArraySharding] = {}
    for op in mlir.block_operations(mlir.entry_block(main)):
        if annotations.SHARDING in op.attributes or op.name in ("sdy.reshard", "sdy.sharding_constraint"):
            found.update(zip(op.results, annotations.result_shardings(op, mesh), strict=True))
    return found


def _constrain_results(op: Operation, shardings: Sequence[ArraySharding]) -> None:
    """Put behind each array that `op` gives a constraint with its sharding."""
    if op.name in _CONSTANTS:
        return  # each user's sharding suits a constant
    following = ir.InsertionPoint.after(op)
    for result, sharding in zip(op.results, shardings, strict=True):
        if not sharding.dims:
            continue
        with following, op.location:
            constraint = sdy.sharding_constraint(result, mlir.attribute(sharding.to_sdy()))
        result.replace_all_uses_except(constraint, mlir.defining_op(constraint))
