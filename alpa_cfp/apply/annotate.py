"""Writes strategies into a module as sharding annotations (CFP, section 8).

Takes an unoptimised module, its blocks and a strategy for each of them; annotates the module in place. The strategy
decides the shardings of the operands and results of every entry of a block, gradients and rematerialised ones included.
A parameter has the sharding of its first use, or is split further (see `strategies.state_sharding`). Sharding
propagation does the rest. Invariants: shardings that alpa has set on inputs and outputs stay; a result that takes the
donated buffer of a parameter has the sharding of the parameter.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxlib import xla_client as xc
from jaxlib.mlir import ir

from alpa_cfp.analysis.blocks import Blocks, ParallelBlock
from alpa_cfp.analysis.graph import BARRIER
from alpa_cfp.analysis.updates import find_updates
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.propagation import donation_pairs, propagate
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding, summed_axes
from alpa_cfp.strategies.state_sharding import StateShardings, find_state_shardings


@dataclass(frozen=True, slots=True)
class Starts:
    """Shardings that are known beside those of a block's entries.

    Attributes:
        inputs: Of parameters, by their numbers.
        ops: Of the only results of ops, by their indices.
    """

    inputs: Mapping[int, ArraySharding] = field(default_factory=dict)
    ops: Mapping[int, ArraySharding] = field(default_factory=dict)


def annotate(
    module: HloModule,
    blocks: Blocks,
    mesh: LogicalMesh,
    strategies: Sequence[BlockStrategy],
    used: Sequence[ArraySharding] | None = None,
    state_shardings: StateShardings | None = None,
    starts: Starts | None = None,
) -> None:
    """Annotates `module` in place.

    Args:
        module: An unoptimised module.
        blocks: Its blocks.
        mesh: The logical mesh.
        strategies: One for each block.
        used: The shardings of the module's parameters under the same strategies with `StateSharding.REPLICATED`; None
            if they are not known yet.
        state_shardings: The shardings of state that is split further, for a module without the updates that decide
            them.
        starts: Where propagation starts, too; None for nowhere.

    Raises:
        ValueError: the numbers of strategies and blocks differ.
    """
    preset, original, starts = _preset(module, mesh), module.bytecode, starts or Starts()
    if used is None:
        known = [starts.inputs.get(i) if sharding is None else sharding for i, sharding in enumerate(preset)]
        _annotate(module, blocks, mesh, strategies, known, starts)
        used = module.input_shardings
        assert used is not None
    if any(strategy.state_sharding is not StateSharding.REPLICATED for strategy in strategies):
        fixed = frozenset(i for i, sharding in enumerate(preset) if sharding is not None)
        updates = find_updates(blocks.graph, donation_pairs(module))
        state_shardings = state_shardings or find_state_shardings(blocks, updates, strategies, used, fixed)
    if state_shardings is not None and (state_shardings.parameters or state_shardings.ops or module.mesh is None):
        module.bytecode = original
        _annotate(module, blocks, mesh, strategies, used, starts, state_shardings)
    module.solved = True


def _annotate(
    module: HloModule,
    blocks: Blocks,
    mesh: LogicalMesh,
    strategies: Sequence[BlockStrategy],
    used: Sequence[ArraySharding | None],
    starts: Starts,
    state_shardings: StateShardings | None = None,
) -> None:
    """Writes shardings and propagates them.

    Args:
        module, blocks, mesh, strategies: As for `annotate`.
        used: The shardings of parameters under `StateSharding.REPLICATED`; None for those that propagation decides.
        starts: Of these the ops.
        state_shardings: The shardings of state that is split further; then `used` has no None.
    """
    inputs = list(used)
    for parameter, sharding in () if state_shardings is None else state_shardings.parameters.items():
        inputs[parameter] = sharding

    def write(parsed: Any) -> None:
        annotations.declare_mesh(parsed, mesh)
        writer = _Writer(parsed, blocks, mesh, inputs)
        for block, strategy in zip(blocks.blocks, strategies, strict=True):
            writer.partition(block, strategy)
        writer.set_results(starts.ops)
        if state_shardings is not None:
            writer.set_results(state_shardings.ops)
            for parameter in state_shardings.parameters:
                writer.gather(parameter, used[parameter], state_shardings.ops)

    propagate(module, mesh, to_outputs=True, inputs=inputs, before=write, after=lambda parsed: _align(parsed, module))


def _preset(module: HloModule, mesh: LogicalMesh) -> list[ArraySharding | None]:
    """The shardings that alpa has set on the inputs; None for the others."""
    if module.input_protos is None:
        return [None] * len(module.shape.parameters)
    result = []
    for data, shape in zip(module.input_protos, module.shape.parameters, strict=True):
        proto = xc.OpSharding()
        proto.ParseFromString(data)
        result.append(ArraySharding.from_proto(mesh, proto, len(shape.dims)))
    return result


def _align(parsed: Any, module: HloModule) -> None:
    """Gives each result that takes a donated parameter's buffer the sharding of the parameter."""
    inputs, outputs = list(module.input_shardings or ()), list(module.output_shardings or ())
    for result, parameter in donation_pairs(module):
        if result not in module.fixed_outputs:
            outputs[result] = inputs[parameter]
    annotations.set_boundary(mlir.main_function(parsed), inputs, outputs)
    module.output_shardings = tuple(outputs)


class _Writer:
    """Writes the shardings of entries into a module, and those of the parameters that they use into `inputs`."""

    def __init__(self, parsed: Any, blocks: Blocks, mesh: LogicalMesh, inputs: list[ArraySharding | None]):
        block = mlir.entry_block(mlir.main_function(parsed))
        self._operations = mlir.block_operations(block)
        self._arguments = block.arguments
        self._graph = blocks.graph
        self._mesh = mesh
        self._axes = {axis.index: axis for axis in mesh.axes}  # without axes of size 1
        self._inputs = inputs

    def partition(self, block: ParallelBlock, strategy: BlockStrategy) -> None:
        """Partition the entries of `block` by `strategy`."""
        axes_of: dict[int, dict[int, tuple[int, ...]]] = {}
        for number, factor in enumerate(block.factors):
            for op, rule_factor in factor.places:
                axes_of.setdefault(op, {})[rule_factor] = strategy.axes_of(number)
        along = {} if strategy.sums_along is None else dict(block.factors[strategy.sums_along].places)
        summed = summed_axes(block, strategy, self._mesh.shape)
        for entry in block.entries:
            self._partition_entry(entry.op, axes_of.get(entry.op, {}), along.get(entry.op), summed)

    def set_results(self, shardings: Mapping[int, ArraySharding]) -> None:
        """Give the results of the ops with these indices their shardings."""
        for op, sharding in shardings.items():
            annotations.set_result_shardings(self._operations[op], [sharding])

    def gather(self, parameter: int, sharding: ArraySharding | None, updates: Container[int]) -> None:
        """Reshard a parameter to `sharding` at each use by an op that is not among `updates`.

        Each use gathers for itself. Only where small gathers are combined, a gathered weight is held from its first use
        to its last.
        """
        assert sharding is not None
        worklist = [self._graph.parameters[parameter]]
        while worklist:
            value = worklist.pop()
            for user in self._graph.values[value].users:
                op = self._graph.ops[user]
                positions = [position for position, operand in enumerate(op.operands) if operand == value]
                if op.name == BARRIER:
                    worklist += [op.results[position] for position in positions]
                elif user not in updates:
                    for position in positions:
                        self._reshard(self._operations[user], position, value, sharding)

    def _partition_entry(
        self, index: int, axes_of_factor: dict[int, tuple[int, ...]], sums_along: int | None, summed: Sequence[int]
    ) -> None:
        """Partition an entry.

        Args:
            index: Its index.
            axes_of_factor: The mesh axes that split each factor of its rule, in the order of the block's factors.
            sums_along: The factor of its rule along which its result is split if it is a sum over devices; None for
                none.
            summed: The mesh axes over which such sums are.
        """
        op, operation = self._graph.ops[index], self._operations[index]
        if op.rule is None:
            return

        rule, (mesh, axes) = op.rule, (self._mesh, self._axes)

        def sharding(dims: tuple[tuple[int, ...], ...], axes_of: Mapping[int, tuple[int, ...]]) -> ArraySharding:
            majors = (rule.major_factor(factors) for factors in dims)
            split = (axes_of.get(major, ()) if major is not None else () for major in majors)
            return ArraySharding(mesh, tuple(tuple(axes[axis] for axis in each) for each in split))

        for position, (value, dims) in enumerate(zip(op.operands, rule.operands, strict=True)):
            self._partition_operand(operation, position, value, sharding(dims, axes_of_factor))
        annotations.set_result_shardings(operation, [sharding(dims, axes_of_factor) for dims in rule.results])
        if sums_along is None:
            return
        (result,) = rule.results
        kept = {rule.major_factor(factors) for factors in result}
        others = [axis for factor, split in axes_of_factor.items() if factor not in kept for axis in split]
        parts = [axis for axis in others if axis in summed]
        if parts and sums_along in kept:
            own = axes_of_factor.get(sums_along, ())
            self._split_result(operation, sharding(result, {**axes_of_factor, sums_along: (*own, *parts)}))

    def _split_result(self, operation: Any, sharding: ArraySharding) -> None:
        """Split the only result of an op right after it."""
        result = operation.results[0]
        with ir.InsertionPoint.after(operation), operation.location:
            constraint = _constraint(result, sharding)
        result.replace_all_uses_except(constraint.results[0], constraint)

    def _partition_operand(self, operation: Any, position: int, value: int, sharding: ArraySharding) -> None:
        producer = self._graph.values[value].op
        if producer is None:
            number = self._graph.values[value].position
            if self._inputs[number] is None:
                self._inputs[number] = sharding
            if self._inputs[number] == sharding:
                return
        elif self._graph.constant_derived[producer]:
            return
        self._reshard(operation, position, value, sharding)

    def _reshard(self, operation: Any, position: int, value: int, sharding: ArraySharding) -> None:
        """Reshard an operand right before it is used, or a value that the operation's regions capture."""
        is_operand = position < len(operation.operands)
        with ir.InsertionPoint(operation), operation.location:
            whole = operation.operands[position] if is_operand else self._value(value)
            constraint = _constraint(whole, sharding)
        if is_operand:
            operation.operands[position] = constraint.results[0]
            return
        for inner in mlir.inner_operations(operation):
            for number, operand in enumerate(inner.operands):
                if operand == whole:
                    inner.operands[number] = constraint.results[0]

    def _value(self, value: int) -> Any:
        """The value of the module with this number in the graph."""
        known = self._graph.values[value]
        return (
            self._arguments[known.position] if known.op is None else self._operations[known.op].results[known.position]
        )


def _constraint(value: Any, sharding: ArraySharding) -> Any:
    """A new op that gives a value another sharding, at the insertion point."""
    return mlir.create(
        "sdy.sharding_constraint", [value.type], [value], {"sharding": mlir.attribute(sharding.to_sdy())}
    )
