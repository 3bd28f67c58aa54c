"""Move the reductions of gradients out of the accumulate step, into a program that is run once a step.

In the annotated program of one micro-batch, `result_k = old_k + g_k`, where `g_k` comes from partial sums that
`sdy.all_reduce` sums over devices. Where everything between such an all-reduce and the results is linear, the sum can
be made after the last micro-batch instead: the devices then accumulate their parts. `defer_reductions` finds these
all-reduces and marks them; `localize` leaves them out. The forked jaxlib did this in its pass GradAccRewrite, and with
XLA_SKIP_NCCL_COLLECTIVE_IDS at run time.

Invariant: with `parts_k` what the devices hold in result k, summing them over `unreduced axes of k` gives what the
program without deferral gives, if `old_k` is a sum over the devices in the same sense (zeros at first).
"""

from collections.abc import Iterable, Sequence
from typing import Any

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import element_type
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.shapes import Shape
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.module.partitioned import PartitionedProgram
from alpa_cfp.spmd.partition.local_context import LocalContext
from alpa_cfp.spmd.partition.partial_flow import PartialFlow, leave_out, sums_of
from alpa_cfp.spmd.shardings.sharding import Axis, LogicalMesh


def accumulators_of(module: HloModule) -> dict[int, int]:
    """The results of a program that are `old + gradient`, each with the number of the parameter that is `old`."""
    with mlir.context():
        parsed = mlir.parse(module.bytecode)
        main = mlir.main_function(parsed)
        numbers = {value: number for number, value in enumerate(mlir.entry_block(main).arguments)}
        found = {}
        for result, value in enumerate(mlir.terminator(main).operands):
            if (pattern := _accumulation(value)) is not None:
                add, gradient = pattern
                found[result] = next(numbers[old] for old in add.operands if old != gradient)
        return found


def defer_reductions(main: Operation, mesh: LogicalMesh, results: Iterable[int]) -> list[tuple[Axis, ...]]:
    """Mark the all-reduces of gradients in `main` that can be made after the program.

    Args:
        main: The program's function, with Shardy's collectives.
        mesh: The logical mesh.
        results: The numbers of the results that are accumulators (`old + gradient`).

    Returns:
        For each result of `main` the axes over which the devices' parts are still to be summed.
    """
    *operations, end = mlir.block_operations(mlir.entry_block(main))
    returned = list(end.operands)
    accumulators = {i: pattern for i in results if (pattern := _accumulation(returned[i])) is not None}
    accumulations = frozenset(add for add, _ in accumulators.values())

    def follow(left_out: set[Operation]) -> PartialFlow:
        flow = PartialFlow(mesh, left_out, accumulations).follow(operations)
        for i, value in enumerate(returned):
            if i not in accumulators or _behind_barriers(value) != accumulators[i][0]:
                flow.reject([value])
        return flow

    flow = leave_out(sums_of(mlir.entry_block(main)), follow)
    return [
        tuple(sorted(flow.of(accumulators[i][1]).axes)) if flow is not None and i in accumulators else ()
        for i in range(len(returned))
    ]


def _accumulation(result: Value) -> tuple[Operation, Value] | None:
    """The op `old + g` behind a result, and `g`, where `old` is a parameter that is used for nothing else."""
    op = _behind_barriers(result)
    if op is None or op.name != "stablehlo.add":
        return None
    for old, gradient in (list(op.operands), list(op.operands)[::-1]):
        if mlir.defining_op(old) is None and len(mlir.users(old)) == 1 and len(mlir.users(op.results[0])) == 1:
            return op, gradient
    return None


def _behind_barriers(value: Value) -> Operation | None:
    """The op that makes `value`, looked for behind optimization barriers."""
    op = mlir.defining_op(value)
    while op is not None and op.name == "stablehlo.optimization_barrier":
        value = op.operands[list(op.results).index(value)]
        op = mlir.defining_op(value)
    return op


def unreduced_results(program: PartitionedProgram) -> list[int]:
    """The results of `program` that are still to be summed over devices."""
    return [i for i, axes in enumerate(program.unreduced_outputs) if axes]


def grad_sync_bytecode(program: PartitionedProgram, shapes: Sequence[Shape]) -> bytes:
    """One device's program that sums the unreduced results of `program` in place.

    XLA's combiner puts the all-reduces together while it compiles.

    Args:
        program: The accumulate step.
        shapes: The global shapes of its results.

    Returns:
        A module that takes the unreduced results, in order, and gives them back summed, each in its own buffer.
    """
    results = unreduced_results(program)
    with mlir.context(), ir.Location.unknown():
        module = ir.Module.create()
        types: list[Any] = [
            ir.RankedTensorType.get(
                program.output_shardings[i].local_shape(shapes[i].dims), element_type(shapes[i].dtype)
            )
            for i in results
        ]
        function, block = mlir.add_main(module, types, types)
        ctx = LocalContext(program.mesh, block)
        with ir.InsertionPoint(block):
            summed = [
                ctx.all_reduce(value, program.unreduced_outputs[result], "add")
                for result, value in zip(results, block.arguments, strict=True)
            ]
            mlir.create("func.return", [], summed)
        aliases = [{"tf.aliasing_output": mlir.i32(i)} for i in range(len(types))]
        mlir.set_function_arguments_attributes(function, "arg_attrs", aliases)
        module.operation.attributes["sym_name"] = ir.StringAttr.get("grad_sync")
        return mlir.to_bytecode(module)
