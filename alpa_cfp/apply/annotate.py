"""Write a choice of strategies into a module (CFP, section 8).

Takes an unoptimised module, its blocks and a strategy for each of them; annotates the module in place. Every entry of a
block, its gradients and clones included, gets operands and results that lie as the strategy says; a parameter is kept
as it is first used, or shared (see `strategies.state_sharding`); sharding propagation does the rest. Invariants: what
alpa has set on the inputs and outputs of the module stays; a result that takes a donated buffer of a parameter lies as
the parameter does.
"""

from collections.abc import Container, Sequence
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
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding
from alpa_cfp.strategies.state_sharding import StateShardings, find_state_shardings


def annotate(
    module: HloModule,
    blocks: Blocks,
    mesh: LogicalMesh,
    strategies: Sequence[BlockStrategy],
    used: Sequence[ArraySharding] | None = None,
    state_shardings: StateShardings | None = None,
) -> None:
    """Annotate `module`, of which `blocks` are the blocks, in place.

    Args:
        module: An unoptimised module.
        blocks: Its blocks.
        mesh: The logical mesh.
        strategies: One for each block.
        used: How the module's parameters lie under the same strategies where all state is kept as it is used, if that
            is known.
        shared: What is shared although the updates for which it is are not in the module.

    Raises:
        ValueError: there are not as many strategies as blocks.
    """
    given, original = _given(module, mesh), module.bytecode
    if used is None:
        _place(module, blocks, mesh, strategies, given)
        used = module.input_shardings
        assert used is not None
    if any(strategy.state_sharding is not StateSharding.REPLICATED for strategy in strategies):
        fixed = frozenset(i for i, sharding in enumerate(given) if sharding is not None)
        updates = find_updates(blocks.graph, donation_pairs(module))
        state_shardings = state_shardings or find_state_shardings(blocks, updates, strategies, used, fixed)
    if state_shardings is not None and (state_shardings.parameters or state_shardings.ops or module.mesh is None):
        module.bytecode = original
        _place(module, blocks, mesh, strategies, used, state_shardings)
    module.solved = True


def _place(
    module: HloModule,
    blocks: Blocks,
    mesh: LogicalMesh,
    strategies: Sequence[BlockStrategy],
    used: Sequence[ArraySharding | None],
    state_shardings: StateShardings | None = None,
) -> None:
    """Write what is decided, and propagate it.

    Args:
        module, blocks, mesh, strategies: As for `annotate`.
        used: How parameters lie where state is kept as it is used; None for what propagation is to find.
        shared: What is shared; then `used` has no None.
    """
    inputs = list(used)
    for parameter, sharding in () if state_shardings is None else state_shardings.parameters.items():
        inputs[parameter] = sharding

    def write(parsed: Any) -> None:
        annotations.declare_mesh(parsed, mesh)
        writer = _Writer(parsed, blocks, mesh, inputs)
        for block, strategy in zip(blocks.blocks, strategies, strict=True):
            writer.place(block, strategy)
        if state_shardings is not None:
            writer.place_updates(state_shardings.ops)
            for parameter in state_shardings.parameters:
                writer.gather(parameter, used[parameter], state_shardings.ops)

    module.bytecode, _ = mlir.edit(module.bytecode, write)
    propagate(module, mesh, to_outputs=True, inputs=inputs)
    _keep_donated_in_place(module)


def _given(module: HloModule, mesh: LogicalMesh) -> list[ArraySharding | None]:
    """The shardings that alpa has set on the inputs."""
    if module.input_protos is None:
        return [None] * len(module.shape.parameters)
    result = []
    for data, shape in zip(module.input_protos, module.shape.parameters, strict=True):
        proto = xc.OpSharding()
        proto.ParseFromString(data)
        result.append(ArraySharding.from_proto(mesh, proto, len(shape.dims)))
    return result


def _keep_donated_in_place(module: HloModule) -> None:
    """Bring each result that takes a donated parameter's buffer to where the parameter lies."""
    inputs, outputs = list(module.input_shardings or ()), list(module.output_shardings or ())
    for result, parameter in donation_pairs(module):
        if result not in module.fixed_outputs:
            outputs[result] = inputs[parameter]

    def write(parsed: Any) -> None:
        annotations.set_boundary(mlir.main_function(parsed), inputs, outputs)

    module.bytecode, _ = mlir.edit(module.bytecode, write)
    module.output_shardings = tuple(outputs)


class _Writer:
    """Writes shardings of entries into a module, and those of the parameters that they use into `inputs`."""

    def __init__(self, parsed: Any, blocks: Blocks, mesh: LogicalMesh, inputs: list[ArraySharding | None]):
        block = mlir.entry_block(mlir.main_function(parsed))
        self._operations = mlir.block_operations(block)
        self._graph = blocks.graph
        self._mesh = mesh
        self._axes = {axis.index: axis for axis in mesh.axes}  # without those of a single device
        self._inputs = inputs

    def place(self, block: ParallelBlock, strategy: BlockStrategy) -> None:
        """Make the entries of `block` compute what `strategy` says."""
        split: dict[int, dict[int, tuple[int, ...]]] = {}
        for number, factor in enumerate(block.factors):
            for op, rule_factor in factor.places:
                split.setdefault(op, {})[rule_factor] = strategy.axes_of(number)
        for entry in block.entries:
            self._place_entry(entry.op, split.get(entry.op, {}))

    def place_updates(self, shardings: dict[int, ArraySharding]) -> None:
        """Make the ops with these indices compute results that lie as it says."""
        for op, sharding in shardings.items():
            annotations.set_result_shardings(self._operations[op], [sharding])

    def gather(self, parameter: int, sharding: ArraySharding | None, updates: Container[int]) -> None:
        """Give a parameter this sharding wherever an op that is not among `updates` uses it.

        Each use gathers for itself; but where gathers are combined, as small ones are, a gathered weight is kept from
        the first use to the last.
        """
        assert sharding is not None
        waiting = [self._graph.parameters[parameter]]
        while waiting:
            value = waiting.pop()
            for user in self._graph.values[value].users:
                op = self._graph.ops[user]
                positions = [position for position, operand in enumerate(op.operands) if operand == value]
                if op.name == BARRIER:
                    waiting += [op.results[position] for position in positions]
                elif user not in updates:
                    for position in positions:
                        self._constrain(self._operations[user], position, sharding)

    def _place_entry(self, index: int, axes_of_factor: dict[int, tuple[int, ...]]) -> None:
        op, operation = self._graph.ops[index], self._operations[index]
        if op.rule is None:
            return

        def sharding(dims: tuple[tuple[int, ...], ...]) -> ArraySharding:
            assert op.rule is not None
            majors = (op.rule.major_factor(factors) for factors in dims)
            axes = (axes_of_factor.get(major, ()) if major is not None else () for major in majors)
            return ArraySharding(self._mesh, tuple(tuple(self._axes[axis] for axis in each) for each in axes))

        for position, (value, dims) in enumerate(zip(op.operands, op.rule.operands, strict=True)):
            self._place_operand(operation, position, value, sharding(dims))
        annotations.set_result_shardings(operation, [sharding(dims) for dims in op.rule.results])

    def _place_operand(self, operation: Any, position: int, value: int, sharding: ArraySharding) -> None:
        producer = self._graph.values[value].op
        if producer is None:
            number = self._graph.values[value].position
            if self._inputs[number] is None:
                self._inputs[number] = sharding
            if self._inputs[number] == sharding:
                return
        elif self._graph.constant_derived[producer]:
            return
        self._constrain(operation, position, sharding)

    @staticmethod
    def _constrain(operation: Any, position: int, sharding: ArraySharding) -> None:
        """Bring an operand to a sharding right before it is used."""
        attributes = {"sharding": ir.Attribute.parse(sharding.to_sdy())}
        with ir.InsertionPoint(operation), operation.location:
            operand = operation.operands[position]
            moved = mlir.create("sdy.sharding_constraint", [operand.type], [operand], attributes)
        operation.operands[position] = moved.results[0]
