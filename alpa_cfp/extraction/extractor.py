"""Extracts ops of a program as a subprogram: a program of its own (CFP, section 5).

Takes a module, its blocks and ops; gives a module whose parameters are the outer values that the ops use and whose
results are the values that are used outside, with the blocks in it. So a segment's forward, backward and update can be
compiled and timed alone. A parameter of the program is one parameter of the subprogram, though each pass uses it behind
a barrier of its own. Invariants: the subprogram computes the same values as in the program; constant-derived values are
computed anew in it; equal parts give equal modules.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jaxlib.mlir import ir

from alpa_cfp.analysis.blocks import BlockFactor, Blocks, Entry, Output, ParallelBlock
from alpa_cfp.analysis.graph import BARRIER, Graph
from alpa_cfp.analysis.ordering import Order
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.analysis.structure import find_structure
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.propagation import donation_pairs
from alpa_cfp.spmd.shardings.constraints import copy_mesh


@dataclass(frozen=True, slots=True)
class Tie:
    """Places of one value in a subprogram that are not connected in it, since barriers lie between them in the program.

    A value that another block rematerialises is the same value.

    Attributes:
        inputs: The numbers of its parameters that are this value.
        outputs: The number of its result that is; empty if the value comes from outside.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SubprogramSpec:
    """The description of a subprogram before it is extracted.

    Attributes:
        name: Its name.
        ops: All its ops, in its order, constant-derived ones included.
        inputs: For each parameter the value of the program that it is.
        outputs: For each result the value of the program that it is.
        aliases: Pairs (result, parameter) where the result takes the buffer of a donated parameter of the program.
        blocks: Its blocks, in the program's order, with the numbers of its own ops and values.
        ties: The values that rematerialisation hands on to the same ops behind barriers, where they are parameters.
    """

    name: str
    ops: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    aliases: tuple[tuple[int, int], ...]
    blocks: tuple[ParallelBlock, ...]
    ties: tuple[Tie, ...] = ()


@dataclass(frozen=True, slots=True)
class Subprogram:
    """Ops of a program as a program of their own.

    Attributes:
        module: The module.
        blocks: Its blocks, in the program's order.
        inputs: For each parameter the value of the program that it is.
        outputs: For each result the value of the program that it is.
        ties: See `SubprogramSpec`.
    """

    module: HloModule
    blocks: Blocks
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    ties: tuple[Tie, ...] = ()


@dataclass(frozen=True, slots=True)
class ParsedModule:
    """A parsed module.

    Attributes:
        module: The MLIR module, which owns the operations.
        operations: Its operations, by the indices of the graph's ops.
        values: Its values, by the ids of the graph's values.
    """

    module: Any
    operations: list[Any]
    values: list[Any]

    @classmethod
    def of(cls, module: Any) -> "ParsedModule":
        block = mlir.entry_block(mlir.main_function(module))
        operations = mlir.block_operations(block)
        results = (result for operation in operations for result in operation.results)
        return cls(module, operations, [*block.arguments, *results])


class Extractor:
    """Extracts subprograms of one module, which is parsed once, at the first extraction.

    Args:
        module: An unoptimised module.
        blocks: Its blocks.
    """

    def __init__(self, module: HloModule, blocks: Blocks):
        self._module, self._blocks = module, blocks

    @cached_property
    def _order(self) -> Order:
        return Order(self._blocks.graph)

    @cached_property
    def _parsed(self) -> "ParsedModule":
        with mlir.context():
            return ParsedModule.of(mlir.parse(self._module.bytecode))

    def spec(self, ops: Sequence[int], name: str) -> SubprogramSpec:
        """Describes the subprogram of some ops.

        Args:
            ops: Indices of ops. The blocks of which all ops are among them are those of the subprogram.
            name: The name of the subprogram.
        """
        graph = self._blocks.graph
        needed = self._needed(ops)
        own = frozenset(op for op in ops if graph.ops[op].name != BARRIER)
        inputs, outputs = _boundary(graph, needed, own)
        aliases = self._aliases(inputs, outputs)
        own_blocks = _renumbered(self._blocks, needed, inputs)
        ties = self._ties(inputs, outputs)
        return SubprogramSpec(name, tuple(needed), inputs, outputs, aliases, own_blocks, ties)

    def extract(self, spec: SubprogramSpec) -> Subprogram:
        """Extracts a subprogram."""
        parsed, inputs, outputs = self._parsed, spec.inputs, spec.outputs
        values = parsed.values
        with parsed.module.context, ir.Location.unknown():
            made = ir.Module.create()
            copy_mesh(parsed.module, made)
            _, body = mlir.add_main(made, [values[value].type for value in inputs], [values[v].type for v in outputs])
            mapping: dict[Any, Any] = {values[v]: argument for v, argument in zip(inputs, body.arguments, strict=True)}
            graph = self._blocks.graph
            for value in (operand for op in spec.ops for operand in graph.ops[op].operands):
                if (parameter := graph.parameter_or(value)) != value:
                    mapping[values[value]] = mapping[values[parameter]]
            with ir.InsertionPoint(body):
                for op in spec.ops:
                    mlir.clone_into(parsed.operations[op], mapping)
                mlir.create("func.return", [], [mapping[values[value]] for value in outputs])
            bytecode = mlir.to_bytecode(made)
        aliased = {parameter for _, parameter in spec.aliases}
        module = HloModule.from_stablehlo(spec.name, bytecode, [number in aliased for number in range(len(inputs))])
        module.aliases, module.combiner_limits = spec.aliases, self._module.combiner_limits
        block_of = {op: block.index for block in spec.blocks for op in (*block.members, *block.glue)}
        blocks = Blocks(read_graph(bytecode), spec.blocks, tuple(map(block_of.get, range(len(spec.ops)))), ())
        return Subprogram(module, blocks, inputs, outputs, spec.ties)

    @cached_property
    def _class_of(self) -> tuple[int, ...]:
        """For each value of the program a number that equal values share."""
        return find_structure(self._blocks.graph).class_of

    def _ties(self, inputs: Sequence[int], outputs: Sequence[int]) -> tuple[Tie, ...]:
        """The values of a subprogram that it has in several places; the program's parameters, its state, are none."""
        graph, places = self._blocks.graph, dict[int, tuple[list[int], list[int]]]()
        for number, value in enumerate(inputs):
            if graph.values[graph.origin(value)].op is not None:
                places.setdefault(self._class_of[value], ([], []))[0].append(number)
        for number, value in enumerate(outputs):
            if self._class_of[value] in places:
                places[self._class_of[value]][1].append(number)
        return tuple(Tie(tuple(into), tuple(out)) for into, out in places.values() if len(into) + len(out) > 1)

    @cached_property
    def _pairs(self) -> dict[int, list[tuple[int, int, int]]]:
        """By the value of a donated parameter: which pair it is, its value, and that of the result in its buffer."""
        graph, found = self._blocks.graph, dict[int, list[tuple[int, int, int]]]()
        for number, (result, parameter) in enumerate(donation_pairs(self._module)):
            value = graph.parameters[parameter]
            found.setdefault(value, []).append((number, value, graph.origin(graph.results[result])))
        return found

    def _aliases(self, inputs: Sequence[int], outputs: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Pairs (result, input) of a subprogram where the result takes the buffer of a donated parameter."""
        origin = self._blocks.graph.origin
        result_of = {value: number for number, value in enumerate(outputs)}
        input_of = {origin(value): number for number, value in enumerate(inputs)}
        pairs = sorted(pair for value in input_of for pair in self._pairs.get(value, ()))
        found = ((result_of.get(result), input_of[parameter]) for _, parameter, result in pairs)
        return tuple((result, number) for result, number in found if result is not None)

    def _needed(self, ops: Sequence[int]) -> list[int]:
        """Returns `ops` with the constant-derived ops that they need, in the order of `ordering`.

        Barriers are left out: a value behind one is an outer value.
        """
        graph = self._blocks.graph
        worklist = [op for op in ops if graph.ops[op].name != BARRIER]
        needed = set(worklist)
        while worklist:
            for value in graph.ops[worklist.pop()].operands:
                producer = graph.values[value].op
                if producer is not None and graph.constant_derived[producer] and producer not in needed:
                    needed.add(producer)
                    worklist.append(producer)
        return self._order.of(needed)


def extract(module: HloModule, blocks: Blocks, ops: Sequence[int], name: str) -> Subprogram:
    """Extracts a single subprogram."""
    extractor = Extractor(module, blocks)
    return extractor.extract(extractor.spec(ops, name))


def without_ops(blocks: Blocks, numbers: Sequence[int], ops: Set[int]) -> Blocks:
    """Returns some blocks without some of their ops. Blocks without any ops left are omitted.

    Args:
        blocks: The blocks of a program.
        numbers: The numbers of those that are returned.
        ops: The ops that are removed.
    """
    remaining = [_without(blocks.blocks[number], ops) for number in numbers]
    return replace(blocks, blocks=tuple(block for block in remaining if block.members or block.glue))


def _without(block: ParallelBlock, ops: Set[int]) -> ParallelBlock:
    return replace(
        block,
        entries=tuple(entry for entry in block.entries if entry.op not in ops),
        factors=tuple(
            replace(each, places=tuple(place for place in each.places if place[0] not in ops)) for each in block.factors
        ),
        members=tuple(op for op in block.members if op not in ops),
        glue=tuple(op for op in block.glue if op not in ops),
    )


def _boundary(graph: Graph, needed: Sequence[int], own: Set[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The inputs of a subprogram, in the order of their first use, and its outputs."""
    made = {value for op in needed for value in graph.ops[op].results}
    used = (graph.parameter_or(value) for op in needed for value in graph.ops[op].operands)
    inputs = tuple(dict.fromkeys(value for value in used if value not in made))
    returned = set(graph.results)
    leaving = (
        value
        for op in needed
        if op in own
        for value in graph.ops[op].results
        if value in returned or any(user not in own for user in graph.values[value].users)
    )
    return inputs, tuple(leaving)


def _renumbered(blocks: Blocks, needed: Sequence[int], inputs: Sequence[int]) -> tuple[ParallelBlock, ...]:
    """The blocks that are entirely in a subprogram, with its numbers of ops and values."""
    ops = {op: i for i, op in enumerate(needed)}
    # As in any graph: first the parameters, then the results of each op.
    made = (value for op in needed for value in blocks.graph.ops[op].results)
    values = {value: i for i, value in enumerate(made, len(inputs))}
    inside = [
        block
        for block in blocks.blocks
        if all(op in ops or blocks.graph.ops[op].name == BARRIER for op in (*block.members, *block.glue))
    ]
    return tuple(with_numbers(block, i, ops, values) for i, block in enumerate(inside))


def with_numbers(block: ParallelBlock, index: int, number: dict[int, int], value_of: dict[int, int]) -> ParallelBlock:
    """Returns `block` with another program's numbers of ops and values, and without `parameters`.

    Args:
        block: The block.
        index: Its number in the other program.
        number: For each op that is in the other program, its number there; the entries are.
        value_of: The same for values.
    """
    factors = tuple(
        BlockFactor(each.side, each.max_shards, each.usable, tuple((number[op], factor) for op, factor in each.places))
        for each in block.factors
    )
    return replace(
        block,
        index=index,
        entries=tuple(Entry(number[each.op], each.role, number[each.forward]) for each in block.entries),
        factors=factors,
        members=tuple(sorted(number[op] for op in block.members if op in number)),
        glue=tuple(sorted(number[op] for op in block.glue if op in number)),
        parameters=(),
        outputs=tuple(Output(value_of[each.value], each.dims) for each in block.outputs if each.value in value_of),
    )
