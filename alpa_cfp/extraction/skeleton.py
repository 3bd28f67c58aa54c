"""Skeletons: programs in which repeated segments stand less often, from which the whole program is extrapolated.

Takes a module and its blocks; gives shorter modules with their blocks: one with two units of each repeat, and for each
repeat one with more. Whatever is a sum over blocks and neighbours (seconds, bytes, collectives) grows by the same with
each unit, so these tell it for any depth, by programs of one size. The middle of a repeat is left
out. A value of it that other ops use is replaced by the corresponding one of the last unit before the gap, if the user
comes behind the gap, and else (cotangents) of the first unit behind it. A parameter that two neighbours share (a scale
that one applies and the other updates) is shared across the gap, too. Invariants: a skeleton is a valid program, whose
blocks are equal to those that they stand for, but for what they are given; a parameter is left out with the result that
takes its buffer.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jaxlib.mlir import ir

from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.analysis.graph import BARRIER, MARK, Graph, Value
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.analysis.repeats import Gap, Repeat, find_repeats, left_out
from alpa_cfp.analysis.segments import Segment, find_segments
from alpa_cfp.extraction.extractor import ParsedModule, with_numbers
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.propagation import donation_pairs
from alpa_cfp.spmd.shardings.constraints import copy_mesh

# Units of each repeat in the smallest skeleton: one before the gap and one behind it.
_LEAST = 2
# The skeletons of a program have at most this share of its blocks; otherwise the program itself is taken.
_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A shorter program.

    Attributes:
        module: The program.
        blocks: Its blocks.
        stands_for: For each of its blocks the block of the whole program that it is.
    """

    module: HloModule
    blocks: Blocks
    stands_for: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """The skeletons that tell what a program takes.

    Attributes:
        least: The one with two units of each repeat.
        longer: For each repeat one with more units of it, by the same number.
        missing: For each repeat how many such steps lead from `least` to the program.
    """

    least: Skeleton
    longer: tuple[Skeleton, ...]
    missing: tuple[float, ...]

    @property
    def all(self) -> tuple[Skeleton, ...]:
        """The skeletons, `least` first."""
        return (self.least, *self.longer)

    @property
    def blocks(self) -> int:
        """The number of their blocks."""
        return sum(len(each.stands_for) for each in self.all)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The ops of a skeleton in their order, with their operands, and the program's numbers of its parameters and
    results, of the pairs (result, parameter) that share a buffer, and of parameters with those in their places."""

    operands: Mapping[int, tuple[int, ...]]
    parameters: tuple[int, ...]
    results: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    shared: Mapping[int, int]


class Skeletons:
    """Makes the skeletons of one program, each of which is kept.

    Args:
        module: An unoptimised module.
        blocks: Its blocks.
        digests: The digest of each block, if they are known.
    """

    def __init__(self, module: HloModule, blocks: Blocks, digests: Sequence[bytes] | None = None) -> None:
        self._module, self._blocks, self._digests = module, blocks, digests
        self._made = dict[frozenset[int], Skeleton | None]()

    def find(
        self, labels: Sequence[Hashable] | None = None, more: int = 1, share: float = _SHARE
    ) -> Extrapolation | None:
        """Returns the skeletons of the program; None if there are none that are smaller than it is.

        Args:
            labels: A label for each block; segments with other labels do not stand for each other (a plan's choices).
            more: By how many units the longer ones are longer.
            share: The skeletons have at most this share of the program's blocks, all together.
        """
        repeats = self._repeats(labels, _LEAST + more + 1)
        least = dict.fromkeys(repeats, _LEAST)
        gaps = [left_out(each) for each in (least, *(least | {repeat: _LEAST + more} for repeat in repeats))]
        blocks = sum(len(self._blocks.blocks) - self._blocks_of(each) for each in gaps)
        if not repeats or blocks > share * len(self._blocks.blocks):
            return None
        made = [self._skeleton(each) for each in gaps]
        found = tuple(skeleton for skeleton in made if skeleton is not None)
        if len(found) < len(made):
            return None
        return Extrapolation(found[0], found[1:], tuple((repeat.count - _LEAST) / more for repeat in repeats))

    @cached_property
    def _segments(self) -> tuple[Segment, ...]:
        """The segments; none for a program of which parts cannot be left out."""
        marks = any(op.name == BARRIER and op.attributes == MARK for op in self._blocks.graph.ops)
        return () if marks or self._blocks.loops else find_segments(self._blocks, self._digests).segments

    @cached_property
    def _parsed(self) -> ParsedModule:
        with mlir.context():
            return ParsedModule.of(mlir.parse(self._module.bytecode))

    @cached_property
    def _pairs(self) -> list[tuple[int, int]]:
        return donation_pairs(self._module)

    @cached_property
    def _ops(self) -> list[list[int]]:
        """For each segment its ops, barriers last."""
        ops = self._blocks.graph.ops
        return [sorted(segment.ops, key=lambda op: ops[op].name == BARRIER) for segment in self._segments]

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        """For each op of a segment the segment and its position in `_ops`."""
        return {op: (segment, place) for segment, ops in enumerate(self._ops) for place, op in enumerate(ops)}

    def _repeats(self, labels: Sequence[Hashable] | None, least: int) -> tuple[Repeat, ...]:
        chosen = [
            (segment.kind, None if labels is None else tuple(labels[block] for block in segment.blocks))
            for segment in self._segments
        ]
        return find_repeats(chosen, least)

    def _blocks_of(self, segments: Mapping[int, Gap]) -> int:
        return sum(len(self._segments[each].blocks) for each in segments)

    def _skeleton(self, gaps: Mapping[int, Gap]) -> Skeleton | None:
        """The program without some segments; None if it is not a valid one."""
        key = frozenset(gaps)
        if key not in self._made:
            plan = self._planned(gaps)
            self._made[key] = None if plan is None else self._built(plan, gaps)
        return self._made[key]

    @cached_property
    def _unused(self) -> set[int]:
        """The ops of blocks from which no result of the program is computed."""
        graph = self._blocks.graph
        makers = _makers(graph.values[value] for value in graph.results)
        return self._places.keys() - _needed(graph, {op.index: op.operands for op in graph.ops}, makers)

    def _planned(self, gaps: Mapping[int, Gap]) -> _Plan | None:
        graph, operands = self._blocks.graph, dict[int, tuple[int, ...]]()
        shared = self._shared(gaps)
        for op in graph.ops:
            segment, _ = self._places.get(op.index, (len(self._segments), 0))
            if segment not in gaps:
                found = [shared.get(value, self._instead(value, segment, gaps)) for value in op.operands]
                if None in found:
                    return None
                operands[op.index] = tuple(value for value in found if value is not None)
        returned = [graph.values[value] for value in graph.results]
        # Ops that nothing is computed from in the program either are part of it.
        needed = _needed(graph, operands, {*self._unused, *_makers(returned)}.intersection(operands))
        entries = (entry.op for block in self._blocks.blocks for entry in block.entries)
        order = _ordered(graph, {op: operands[op] for op in operands if op in needed})
        if order is None or any(op in operands and op not in needed for op in entries):
            return None
        numbers = {graph.values[old].position: graph.values[new].position for old, new in shared.items()}
        pairs = tuple(
            (result, numbers.get(parameter, parameter))
            for result, parameter in self._pairs
            if returned[result].op in operands
        )
        used = {value for each in order.values() for value in each}
        without_result = {parameter for _, parameter in self._pairs} - {parameter for _, parameter in pairs}
        parameters = tuple(
            number
            for number, value in enumerate(graph.parameters)
            if value in used or not (graph.values[value].users or number in without_result)
        )
        if not set(parameters).issuperset(parameter for _, parameter in pairs):
            return None
        results = tuple(
            number
            for number, value in enumerate(returned)
            if (value.op in operands if value.op is not None else value.position in parameters)
        )
        return _Plan(order, parameters, results, pairs, numbers)

    def _shared(self, gaps: Mapping[int, Gap]) -> dict[int, int]:
        """The parameters that are used before a gap, by those that take their places behind it."""
        graph, found = self._blocks.graph, dict[int, int]()
        parameter_of = {graph.results[result]: graph.parameters[parameter] for result, parameter in self._pairs}

        def parameters(op: int) -> list[int | None]:
            """The parameters that an op uses, and those whose buffers its results take, each in its place."""
            used = [value if graph.values[value].op is None else None for value in graph.ops[op].operands]
            return [*used, *map(parameter_of.get, graph.ops[op].results)]

        kept = {
            each
            for segment, ops in enumerate(self._ops)
            for op in ops
            if segment not in gaps
            for each in parameters(op)
        }
        for segment, gap in gaps.items():
            for omitted, other in zip(self._ops[segment], self._ops[gap.after], strict=False) if gap.is_first else ():
                for before, behind in zip(parameters(omitted), parameters(other), strict=False):
                    if before is not None and behind is not None and before != behind and before in kept:
                        found[behind] = before
        return found

    def _instead(self, value: int, user: int, gaps: Mapping[int, Gap]) -> int | None:
        """The value that an op of a segment uses instead of `value`; None if there is none that corresponds."""
        graph = self._blocks.graph
        made = graph.values[value]
        if made.op is None or made.op not in self._places:
            return value
        segment, place = self._places[made.op]
        if segment not in gaps:
            return value
        other = self._ops[gaps[segment].before if user > segment else gaps[segment].after]
        if place >= len(other) or len(graph.ops[other[place]].results) <= made.position:
            return None
        found = graph.values[graph.ops[other[place]].results[made.position]]
        return found.id if (found.shape, found.dtype) == (made.shape, made.dtype) else None

    def _built(self, plan: _Plan, gaps: Mapping[int, Gap]) -> Skeleton | None:
        graph, parsed = self._blocks.graph, self._parsed
        values = parsed.values
        inputs = [values[graph.parameters[number]] for number in plan.parameters]
        outputs = [values[graph.results[number]] for number in plan.results]
        with parsed.module.context, ir.Location.unknown():
            made = ir.Module.create()
            copy_mesh(parsed.module, made)
            _, body = mlir.add_main(made, [each.type for each in inputs], [each.type for each in outputs])
            mapping: dict[Any, Any] = dict(zip(inputs, body.arguments, strict=True))
            with ir.InsertionPoint(body):
                for op, operands in plan.operands.items():
                    own = dict(zip((values[each] for each in graph.ops[op].operands), operands, strict=True))
                    clone_mapping = {value: mapping[values[other]] for value, other in own.items()}
                    mlir.clone_into(parsed.operations[op], clone_mapping)
                    mapping.update((values[result], clone_mapping[values[result]]) for result in graph.ops[op].results)
                mlir.create("func.return", [], [mapping[value] for value in outputs])
            if not made.operation.verify():
                return None
            bytecode = mlir.to_bytecode(made)
        return self._with_blocks(self._module_of(bytecode, plan), plan, gaps)

    def _module_of(self, bytecode: bytes, plan: _Plan) -> HloModule:
        whole = self._module
        parameters, results = ({old: new for new, old in enumerate(each)} for each in (plan.parameters, plan.results))
        aliases = tuple((results[result], parameters[parameter]) for result, parameter in plan.pairs)
        aliased = {parameter for _, parameter in aliases}
        module = HloModule.from_stablehlo(whole.name, bytecode, [number in aliased for number in parameters.values()])
        return replace(
            module,
            aliases=aliases,
            combiner_limits=whole.combiner_limits,
            input_protos=whole.input_protos and tuple(whole.input_protos[number] for number in plan.parameters),
            output_protos=whole.output_protos and tuple(whole.output_protos[number] for number in plan.results),
        )

    def _with_blocks(self, module: HloModule, plan: _Plan, gaps: Mapping[int, Gap]) -> Skeleton:
        graph, blocks = self._blocks.graph, self._blocks.blocks
        omitted = {block for segment in gaps for block in self._segments[segment].blocks}
        stands_for = tuple(block.index for block in blocks if block.index not in omitted)
        ops = {op: number for number, op in enumerate(plan.operands)}
        made = (value for op in plan.operands for value in graph.ops[op].results)
        values = {value: number for number, value in enumerate(made, len(plan.parameters))}
        parameters = {old: new for new, old in enumerate(plan.parameters)}
        parameters |= {old: parameters[other] for old, other in plan.shared.items() if other in parameters}
        found = []
        for index, number in enumerate(stands_for):
            block, used = with_numbers(blocks[number], index, ops, values), blocks[number].parameters
            own = tuple(sorted({parameters[each] for each in used if each in parameters}))
            found.append(replace(block, entries=tuple(sorted(block.entries, key=lambda e: e.op)), parameters=own))
        index_of = {number: index for index, number in enumerate(stands_for)}
        of_op = (self._blocks.block_of_op[op] for op in plan.operands)
        block_of_op = tuple(None if block is None else index_of[block] for block in of_op)
        return Skeleton(module, Blocks(read_graph(module.bytecode), tuple(found), block_of_op, ()), stands_for)


def _makers(values: Iterable[Value]) -> set[int]:
    """The ops that make some values."""
    return {value.op for value in values if value.op is not None}


def _needed(graph: Graph, operands: Mapping[int, tuple[int, ...]], ops: Set[int]) -> set[int]:
    """Some ops with those that they are computed from."""
    worklist, found = list(ops), set(ops)
    while worklist:
        for value in operands[worklist.pop()]:
            op = graph.values[value].op
            if op is not None and op not in found:
                found.add(op)
                worklist.append(op)
    return found


def _ordered(graph: Graph, operands: Mapping[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]] | None:
    """The ops in the order of the program, but each behind what it is computed from; None if there is no such order."""
    order: dict[int, tuple[int, ...]] = {}
    for first in operands:
        # The op with those that have to come before it, each of which is needed by the one below it.
        stack, waiting = [first], set[int]()
        while stack:
            op = stack[-1]
            makers = (graph.values[value].op for value in operands[op])
            missing = [] if op in order else [each for each in makers if each is not None and each not in order]
            if missing and op in waiting:
                return None
            if missing:
                waiting.add(op)
                stack += missing
                continue
            waiting.discard(stack.pop())
            order.setdefault(op, operands[op])
    return order
