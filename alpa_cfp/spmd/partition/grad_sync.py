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

import numpy as np
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import dtype_of, element_type
from alpa_cfp.spmd.ir.constants import is_zero
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import region_reducer
from alpa_cfp.spmd.ir.shapes import Shape
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.module.partitioned import PartitionedProgram
from alpa_cfp.spmd.partition.local_context import LocalContext
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import Axis, LogicalMesh

DEFERRED = "alpa.deferred"

Axes = frozenset[Axis]
_NONE: Axes = frozenset()

# Linear in their one (or first) operand, whatever its values are.
_LINEAR = frozenset(
    (
        *(f"stablehlo.{name}" for name in ("negate", "transpose", "reshape", "broadcast_in_dim", "slice", "reverse")),
        *("sdy.all_slice", "sdy.sharding_constraint", "sdy.reshard"),
    )
)
_SUMS = ("stablehlo.add", "stablehlo.subtract", "stablehlo.concatenate")
# An op that makes partial sums, and of which the sum over devices is the value that is meant.
_SUMMING = ("stablehlo.dot_general", "stablehlo.convolution", "stablehlo.scatter", "stablehlo.gather")


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
    returned = list(mlir.terminator(main).operands)
    accumulators = {i: pattern for i in results if (pattern := _accumulation(returned[i])) is not None}
    candidates = {op for op in mlir.block_operations(mlir.entry_block(main)) if _is_sum(op)}
    if not candidates:
        return [()] * len(returned)
    while True:
        analysis = _Analysis(main, mesh, candidates, {i: add for i, (add, _) in accumulators.items()})
        if not analysis.rejected:
            break
        candidates -= analysis.rejected
        if not candidates:
            return [()] * len(returned)
    for op in candidates:
        op.attributes[DEFERRED] = ir.UnitAttr.get()
    return [
        tuple(sorted(analysis.axes.get(accumulators[i][1], _NONE))) if i in accumulators else ()
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


def _is_sum(op: Operation) -> bool:
    """Whether `op` sums partial sums of floating-point numbers over devices."""
    if op.name != "sdy.all_reduce":
        return False
    kind = dtype_of(op.results[0]).kind
    source = mlir.defining_op(op.operands[0])
    if source is None or kind in "iub":
        return False
    return source.name in _SUMMING or (source.name == "stablehlo.reduce" and region_reducer(source) == "add")


class _Analysis:
    """Finds the axes over which each value is partial if the all-reduces in `candidates` are left out."""

    def __init__(
        self, main: Operation, mesh: LogicalMesh, candidates: set[Operation], accumulators: dict[int, Operation]
    ):
        self.axes: dict[Value, Axes] = {}
        self.rejected: set[Operation] = set()
        self._mesh = mesh
        self._sources: dict[Value, frozenset[Operation]] = {}
        self._accumulators = accumulators
        self._accumulations = set(accumulators.values())
        for op in mlir.block_operations(mlir.entry_block(main)):
            if op in candidates:
                # The partial sums may be made of values that are partial over other axes already.
                axes = frozenset(annotations.axes_attribute(op, "reduction_axes", mesh))
                (operand,) = op.operands
                sources = frozenset({op}) | self._sources.get(operand, frozenset())
                self._set(op.results[0], axes | self._partial(operand), sources)
            elif self.axes and any(self._partial(value) for value in mlir.operands_deep(op)):
                self._through(op)

    def _partial(self, value: Value) -> Axes:
        return self.axes.get(value, _NONE)

    def _set(self, value: Value, axes: Axes, sources: frozenset[Operation]) -> None:
        self.axes[value] = axes
        self._sources[value] = sources

    def _reject(self, op: Operation) -> None:
        for value in mlir.operands_deep(op):
            self.rejected |= self._sources.get(value, frozenset())

    def _through(self, op: Operation) -> None:
        operands = list(op.operands)
        partial = [self._partial(value) for value in operands]
        if op in self._accumulations:
            # old + g: old is a sum over devices in the same sense as g.
            self._pass_on(op, partial)
        elif op.name == "stablehlo.optimization_barrier":
            for operand, result in zip(operands, op.results, strict=True):
                if self._partial(operand):
                    self._set(result, self._partial(operand), self._sources[operand])
        elif _is_linear(op, partial):
            self._pass_on(op, partial)
        elif op.name == "func.return":
            self._check_returned(operands)
        else:
            self._reject(op)

    def _check_returned(self, operands: Sequence[Value]) -> None:
        for i, value in enumerate(operands):
            op = self._accumulators.get(i)
            if self._partial(value) and (op is None or _behind_barriers(value) != op):
                self.rejected |= self._sources[value]

    def _pass_on(self, op: Operation, partial: Sequence[Axes]) -> None:
        axes = frozenset().union(*partial)
        # A dim that is split along one of these axes holds other elements on each device: nothing there to be summed.
        for sharding in annotations.result_shardings(op, self._mesh):
            if any(axis.overlaps(own) for axis in axes for own in sharding.axes):
                self._reject(op)
                return
        sources = frozenset().union(*(self._sources.get(value, frozenset()) for value in op.operands))
        self._set(op.results[0], axes, sources)


def _is_linear(op: Operation, partial: Sequence[Axes]) -> bool:
    """Whether the sum over devices of the op's results is the op's result of the sums of its partial operands."""
    if op.name in _LINEAR:
        return True
    if op.name == "stablehlo.convert":
        return _widens(op)
    if op.name == "stablehlo.reduce":
        return len(op.results) == 1 and region_reducer(op) == "add" and is_zero(op.operands[1])
    if op.name == "stablehlo.pad":
        return not partial[1] and is_zero(op.operands[1])
    if op.name == "stablehlo.multiply":
        return sum(map(bool, partial)) == 1
    if op.name == "stablehlo.divide":
        return not partial[1]
    if op.name == "stablehlo.select":
        return not partial[0] and partial[1] == partial[2]
    return op.name in _SUMS and len(set(partial)) == 1


def _widens(op: Operation) -> bool:
    """Whether a conversion keeps every value of its operand (so that it is linear on them)."""
    before, after = map(dtype_of, (op.operands[0], op.results[0]))
    return np.can_cast(before, after, "safe") or (before.itemsize < after.itemsize and after.kind == "f")


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
