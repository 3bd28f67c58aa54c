"""Cut a part of a program out as a program of its own (CFP, section 5).

Takes a module, its blocks and the ops of the part; gives a module whose parameters are the values that come from
outside and whose results are those that are used outside, and the part's blocks in it. So one segment's forward,
backward and update can be compiled and timed alone. A parameter of the whole is one parameter of the part, though each
pass has it behind a barrier of its own. Invariants: the part computes what it computes in the whole; what derives from
constants alone is computed anew in it; equal parts give equal modules.
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
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.propagation import donation_pairs


@dataclass(frozen=True, slots=True)
class SubprogramSpec:
    """What a part will be.

    Attributes:
        name: What it is called.
        needed: All ops that it has, in their order there: also those that derive from constants alone.
        inputs: For each parameter the value of the whole that it is.
        outputs: For each result the value of the whole that it is.
        aliases: Pairs (result, parameter) where the result takes the place of a donated parameter of the whole.
        blocks: Its blocks, in the order of those of the whole, by the numbers of its ops and values.
    """

    name: str
    needed: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    aliases: tuple[tuple[int, int], ...]
    blocks: tuple[ParallelBlock, ...]


@dataclass(frozen=True, slots=True)
class Subprogram:
    """A part of a program.

    Attributes:
        module: The part as a program.
        blocks: Its blocks, in the order of those of the whole.
        inputs: For each parameter the value of the whole that it is.
        outputs: For each result the value of the whole that it is.
    """

    module: HloModule
    blocks: Blocks
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Whole:
    """A module as MLIR has it.

    Attributes:
        module: It itself, without which there are no operations.
        operations: By the indices of the graph's ops.
        values: By the ids of the graph's values.
    """

    module: Any
    operations: list[Any]
    values: list[Any]

    @classmethod
    def of(cls, module: Any) -> "_Whole":
        block = mlir.entry_block(mlir.main_function(module))
        operations = mlir.block_operations(block)
        results = (result for operation in operations for result in operation.results)
        return cls(module, operations, [*block.arguments, *results])


class Extractor:
    """Cuts parts out of one module; it is read once, when the first is cut.

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
    def _whole(self) -> "_Whole":
        with mlir.context():
            return _Whole.of(mlir.parse(self._module.bytecode))

    def outline(self, ops: Sequence[int], name: str) -> SubprogramSpec:
        """What is known of a part before it is cut.

        Args:
            ops: Indices of ops; the blocks that lie in them entirely are those of the part.
            name: What the part is called.
        """
        graph = self._blocks.graph
        needed = self._needed(ops)
        own = frozenset(op for op in ops if graph.ops[op].name != BARRIER)
        inputs, outputs = _boundary(graph, needed, own)
        aliases = _aliases(self._module, graph, inputs, outputs)
        return SubprogramSpec(name, tuple(needed), inputs, outputs, aliases, _renumbered(self._blocks, needed, inputs))

    def cut(self, outline: SubprogramSpec) -> Subprogram:
        """Cut a part out."""
        whole, inputs, outputs = self._whole, outline.inputs, outline.outputs
        values = whole.values
        with whole.module.context, ir.Location.unknown():
            made = ir.Module.create()
            _, body = mlir.add_main(made, [values[value].type for value in inputs], [values[v].type for v in outputs])
            mapping: dict[Any, Any] = {values[v]: argument for v, argument in zip(inputs, body.arguments, strict=True)}
            graph = self._blocks.graph
            for value in (operand for op in outline.needed for operand in graph.ops[op].operands):
                if (parameter := graph.parameter_or(value)) != value:
                    mapping[values[value]] = mapping[values[parameter]]
            with ir.InsertionPoint(body):
                for op in outline.needed:
                    mlir.clone_into(whole.operations[op], mapping)
                mlir.create("func.return", [], [mapping[values[value]] for value in outputs])
            bytecode = mlir.to_bytecode(made)
        taken = {parameter for _, parameter in outline.aliases}
        part = HloModule.from_stablehlo(outline.name, bytecode, [number in taken for number in range(len(inputs))])
        part.aliases, part.combiner_limits = outline.aliases, self._module.combiner_limits
        block_of = {op: block.index for block in outline.blocks for op in (*block.members, *block.glue)}
        blocks = Blocks(read_graph(bytecode), outline.blocks, tuple(map(block_of.get, range(len(outline.needed)))), ())
        return Subprogram(part, blocks, inputs, outputs)

    def _needed(self, ops: Sequence[int]) -> list[int]:
        """`ops` and the ops, derived from constants alone, that make their operands, in the order of `ordering`.

        Without barriers: what comes through one comes from outside.
        """
        graph = self._blocks.graph
        waiting = [op for op in ops if graph.ops[op].name != BARRIER]
        needed = set(waiting)
        while waiting:
            for value in graph.ops[waiting.pop()].operands:
                producer = graph.values[value].op
                if producer is not None and graph.constant_derived[producer] and producer not in needed:
                    needed.add(producer)
                    waiting.append(producer)
        return self._order.of(needed)


def cut(module: HloModule, blocks: Blocks, ops: Sequence[int], name: str) -> Subprogram:
    """`Extractor.cut` for a single part."""
    cutter = Extractor(module, blocks)
    return cutter.cut(cutter.outline(ops, name))


def without_ops(blocks: Blocks, numbers: Sequence[int], ops: Set[int]) -> Blocks:
    """Some blocks without some of their ops; those of which nothing is left are not there.

    Args:
        blocks: The blocks of a program.
        numbers: Which of them.
        ops: What they are to be without.
    """
    left = [_without(blocks.blocks[number], ops) for number in numbers]
    return replace(blocks, blocks=tuple(block for block in left if block.members or block.glue))


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
    """The values that come into the part, in the order of their first use, and those that leave it."""
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


def _aliases(
    module: HloModule, graph: Graph, inputs: Sequence[int], outputs: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Pairs (result, input) of the part where the result takes the place of a donated parameter of the whole."""
    result_of = {value: number for number, value in enumerate(outputs)}
    input_of = {graph.origin(value): number for number, value in enumerate(inputs)}
    pairs = (
        (result_of.get(graph.origin(graph.results[result])), input_of.get(graph.parameters[parameter]))
        for result, parameter in donation_pairs(module)
    )
    return tuple((result, number) for result, number in pairs if result is not None and number is not None)


def _renumbered(blocks: Blocks, needed: Sequence[int], inputs: Sequence[int]) -> tuple[ParallelBlock, ...]:
    """The blocks that lie in a part entirely, with the part's numbers."""
    ops = {op: i for i, op in enumerate(needed)}
    # Like those of any graph: first the parameters, then what each op gives.
    made = (value for op in needed for value in blocks.graph.ops[op].results)
    values = {value: i for i, value in enumerate(made, len(inputs))}
    inside = [
        block
        for block in blocks.blocks
        if all(op in ops or blocks.graph.ops[op].name == BARRIER for op in (*block.members, *block.glue))
    ]
    return tuple(_with_numbers(block, i, ops, values) for i, block in enumerate(inside))


def _with_numbers(block: ParallelBlock, index: int, number: dict[int, int], value_of: dict[int, int]) -> ParallelBlock:
    """`block` with the numbers of the part's ops and values; what parameters it uses is left out."""
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
