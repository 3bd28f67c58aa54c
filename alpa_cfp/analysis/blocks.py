"""ParallelBlocks: the parts of a program whose partition is decided by one choice (CFP, section 3).

Takes a `Graph`; gives `Blocks`. A block has *entries* (contractions that share an iteration space: forward, gradients,
and these rematerialised), *members* (ops through which a partition of the entries propagates without communication) and
*glue* (other ops of the block, for which a partition may need communication). Invariants: every op is in exactly one
block or is constant-derived; blocks are in program order of their first entries; equal programs have equal blocks.
"""

from dataclasses import dataclass

from alpa_cfp.analysis.block_builder import BlockBuilder
from alpa_cfp.analysis.collection import without_collection
from alpa_cfp.analysis.contractions import Side, find_contractions
from alpa_cfp.analysis.glue import assign_glue, widened_elsewhere
from alpa_cfp.analysis.gradients import GradientGroup, find_gradient_groups
from alpa_cfp.analysis.graph import BARRIER, Graph
from alpa_cfp.analysis.loop_factors import factors_of_loops
from alpa_cfp.analysis.loops import Iteration, find_iterations
from alpa_cfp.analysis.siblings import join_siblings
from alpa_cfp.analysis.structure import find_structure


@dataclass(frozen=True, slots=True)
class Entry:
    """A contraction whose partition a block's strategy decides.

    Attributes:
        op: The index of its op.
        role: "forward", "gradient" or "rematerialised" (of either).
        forward: The op of the forward contraction whose iteration space it shares; its own op for a forward one.
    """

    op: int
    role: str
    forward: int


@dataclass(frozen=True, slots=True)
class BlockFactor:
    """One way to partition a whole block.

    Attributes:
        side: Its side in the first entry; left is that of the activations, right that of the parameters. Along a
            reduction factor the entry's result is a partial sum.
        max_shards: The most parts into which it can split the block; each divisor of this number works too.
        usable: Whether no member needs communication for it. A reduction factor is usable, though its sum communicates.
        places: (op, factor of that op's rule) in every entry that it splits.
    """

    side: Side
    max_shards: int
    usable: bool
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Output:
    """A value that leaves a block's members.

    Attributes:
        value: Its id.
        dims: (dim, index of the block's usable factor that splits it).
    """

    value: int
    dims: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ParallelBlock:
    """A ParallelBlock.

    Attributes:
        index: Its number.
        entries: Its contractions, in program order; of a loop's block the loops themselves.
        factors: Its factors, each of which is a way to partition it.
        members: Its ops through which a partition propagates without communication; rematerialised ops and forward
            entries included.
        glue: Its other ops, gradients included.
        parameters: Numbers of the parameters that any of its ops uses.
        outputs: The values of members that other ops use or that the program returns; not given for a loop's block.
        loop: The index in `Blocks.loops` of the loop that is this block; None for other blocks.
    """

    index: int
    entries: tuple[Entry, ...]
    factors: tuple[BlockFactor, ...]
    members: tuple[int, ...]
    glue: tuple[int, ...]
    parameters: tuple[int, ...]
    outputs: tuple[Output, ...]
    loop: int | None

    @property
    def usable_factors(self) -> tuple[BlockFactor, ...]:
        """The factors that a strategy may use."""
        return tuple(factor for factor in self.factors if factor.usable)


@dataclass(frozen=True, slots=True)
class LoopBlocks:
    """The blocks inside a loop.

    Attributes:
        iteration: One iteration of it, with its backward pass where that is a loop too.
        blocks: The blocks of `iteration.graph`.
    """

    iteration: Iteration
    blocks: "Blocks"


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a graph.

    Attributes:
        graph: The graph.
        blocks: Its blocks.
        block_of_op: For each op the index of its block; None for constant-derived ops.
        loops: Its loops; a backward loop is listed with its forward loop.
    """

    graph: Graph
    blocks: tuple[ParallelBlock, ...]
    block_of_op: tuple[int | None, ...]
    loops: tuple[LoopBlocks, ...]


@without_collection
def find_blocks(graph: Graph) -> Blocks:
    """Returns the ParallelBlocks of `graph` and of the bodies of its loops.

    A program without any contraction is one block without entries.
    """
    structure = find_structure(graph)
    groups = find_gradient_groups(graph, structure, find_contractions(graph, structure))
    builder = BlockBuilder(graph, structure, groups).run()
    join_siblings(builder)
    loops = tuple(LoopBlocks(each, find_blocks(each.graph)) for each in find_iterations(graph))
    loop_at = {loop.iteration.loops[0]: i for i, loop in enumerate(loops) if _has_entries(loop.blocks)}

    roots = {number: builder.blocks[number] for number in range(len(builder.blocks)) if builder.root(number) == number}
    starts = {groups[block.groups[0]].forward.op: number for number, block in roots.items()}
    order = {op: index for index, op in enumerate(sorted([*starts, *loop_at]) or [0])}
    index_of_root = {number: order[op] for op, number in starts.items()}
    block_of_op: list[int | None] = [
        index_of_root[builder.root(block)] if block >= 0 else None for block in builder.block_of_op
    ]
    members = [block is not None for block in block_of_op]
    for op, block in widened_elsewhere(graph, builder.structure.original, block_of_op):
        block_of_op[op], members[op] = block, False
    for first, number in loop_at.items():
        for op in loops[number].iteration.loops:
            block_of_op[op], members[op] = order[first], True
    for number, block in roots.items():
        for group in block.groups:
            for member in groups[group].members:
                block_of_op[member.op] = index_of_root[number]
    if not starts and not loop_at:
        block_of_op = [None if constant_derived else 0 for constant_derived in graph.constant_derived]
    else:
        forward_entries = [*(group.forward.op for group in groups), *loop_at]
        assign_glue(graph, builder.originals(), forward_entries, block_of_op)

    root_of_index = {index: number for number, index in index_of_root.items()}
    ops: list[list[int]] = [[] for _ in order]
    for op, block in enumerate(block_of_op):
        if block is not None:
            ops[block].append(op)
    blocks = tuple(
        _block(graph, builder, index, root_of_index.get(index), ops[index], members, loop_at.get(op), loops)
        for op, index in order.items()
    )
    return Blocks(graph, blocks, tuple(block_of_op), loops)


def _has_entries(blocks: Blocks) -> bool:
    return any(block.entries or block.loop is not None for block in blocks.blocks)


def _block(
    graph: Graph,
    builder: BlockBuilder,
    index: int,
    root: int | None,
    ops: list[int],
    members: list[bool],
    loop: int | None,
    loops: tuple[LoopBlocks, ...],
) -> ParallelBlock:
    inside = tuple(op for op in ops if members[op])
    # A parameter that comes through a barrier has the parameter's own class, which is its id.
    classes = builder.structure.class_of
    used = {classes[v] for op in ops if graph.ops[op].name != BARRIER for v in graph.ops[op].operands}
    entries, factors, outputs = (), (), ()
    if loop is not None:
        entries, factors = _of_loop(graph, loops[loop].iteration.loops)
    elif root is not None:
        entries, factors, outputs = _entries_factors_outputs(graph, builder, root, inside)
    return ParallelBlock(
        index=index,
        entries=entries,
        factors=factors,
        members=inside,
        glue=tuple(op for op in ops if not members[op]),
        parameters=tuple(sorted(graph.values[v].position for v in used if graph.values[v].op is None)),
        outputs=outputs,
        loop=loop,
    )


def _of_loop(graph: Graph, loops: tuple[int, ...]) -> tuple[tuple[Entry, ...], tuple[BlockFactor, ...]]:
    entries = (Entry(loops[0], "forward", loops[0]), *(Entry(op, "gradient", loops[0]) for op in loops[1:]))
    return entries, tuple(
        BlockFactor(side, parts, parts > 1, places) for side, parts, places in factors_of_loops(graph, loops)
    )


def _entries_factors_outputs(
    graph: Graph, builder: BlockBuilder, root: int, members: tuple[int, ...]
) -> tuple[tuple[Entry, ...], tuple[BlockFactor, ...], tuple[Output, ...]]:
    groups = [builder.groups[group] for group in builder.blocks[root].groups]
    numbers = list(dict.fromkeys(builder.factor(number) for number in builder.blocks[root].factors))
    entries = [Entry(member.op, member.role, group.forward.op) for group in groups for member in group.members]
    factors = tuple(_factor(builder, number, groups) for number in numbers)
    usable_index = {number: i for i, number in enumerate(numbers) if factors[i].usable}
    inside, returned = set(members), set(graph.results)
    outputs: list[Output] = []
    for op in members:
        for result in graph.ops[op].results:
            if result in returned or any(user not in inside for user in graph.values[result].users):
                dim_factors = sorted(
                    (dim, builder.factor(number)) for dim, number in builder.dim_factors[result].items()
                )
                outputs.append(
                    Output(
                        result,
                        tuple((dim, usable_index[number]) for dim, number in dim_factors if number in usable_index),
                    )
                )
    return tuple(sorted(entries, key=lambda entry: entry.op)), factors, tuple(outputs)


def _factor(builder: BlockBuilder, number: int, groups: list[GradientGroup]) -> BlockFactor:
    factor = builder.factors[number]
    of_forward: dict[int, list[int]] = {}
    for op, rule_factor in factor.places:
        of_forward.setdefault(op, []).append(rule_factor)
    places = {
        (member.op, member.factors[rule_factor])
        for group in groups
        for member in group.members
        for rule_factor in of_forward.get(group.forward.op, ())
        if rule_factor in member.factors
    }
    usable = factor.max_shards > 1 and (factor.usable or factor.side is Side.REDUCTION)
    return BlockFactor(factor.side, factor.max_shards, usable, tuple(sorted(places)))
