"""Programs in which the sharding of every op is decided, and the communication that partitioning makes of them.

Takes JAX functions and a sharding for each op; `lax.optimization_barrier` in a function stands for a constraint of
auto-sharding, that is, for a resharding. Gives back the program, whose results have been compared with one device's.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.combiner_limits import CombinerLimits
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import PartitionedProgram, partition
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding
from unit.alpa_cfp.spmd.helpers import assert_parts_equal, lower, run, values_of

Shardings = Sequence[ArraySharding]


def solve(
    function: Callable[..., Any], arguments: Sequence[Any], inputs: Shardings, outputs: Shardings, ops: Shardings
) -> HloModule:
    """The module of `function`, solved: `ops` has a sharding for each op in order, but for constants and broadcasts."""
    module = lower(function, arguments)
    module.mesh, module.solved = inputs[0].mesh, True
    module.input_shardings, module.output_shardings = tuple(inputs), tuple(outputs)

    def change(parsed: Any) -> None:
        annotations.declare_mesh(parsed, inputs[0].mesh)
        main = mlir.main_function(parsed)
        annotations.set_boundary(main, inputs, outputs)
        undecided = ("stablehlo.constant", "stablehlo.broadcast_in_dim")
        decided = [op for op in mlir.block_operations(mlir.entry_block(main))[:-1] if op.name not in undecided]
        for op, sharding in zip(decided, ops, strict=True):
            if op.name != "stablehlo.optimization_barrier":
                annotations.set_result_shardings(op, [sharding])
                continue
            attributes = {"sharding": ir.Attribute.parse(sharding.to_sdy())}
            with ir.InsertionPoint(op), op.location:
                new = mlir.create("sdy.sharding_constraint", [op.results[0].type], [op.operands[0]], attributes)
            op.results[0].replace_all_uses_with(new.results[0])
            op.erase()

    module.bytecode = mlir.edit(module.bytecode, change)[0]
    return module


def partitioned(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    inputs: Shardings,
    outputs: Shardings,
    ops: Shardings,
    limits: CombinerLimits | None = None,
) -> PartitionedProgram:
    """The program of `solve(...)`, which Shardy's passes made and which has been found right."""
    module = solve(function, arguments, inputs, outputs, ops)
    module.combiner_limits = limits or CombinerLimits()
    program = partition(module)
    assert program.partitioner == "shardy", program.fallback_reason
    assert_parts_equal(run(module, program, arguments), values_of(function, arguments))
    return program


def kinds(program: PartitionedProgram) -> list[str]:
    """What the program communicates by, in order."""
    return [collective.kind for collective in program.collectives]
