"""Extends each ParallelBlock from its contraction to the ops through which its partitions propagate.

A partition propagates through an op that needs no communication for it. Takes a graph and its gradient groups; gives
for each op the block that it is a member of, or none, and for each block its factors. A *factor* of a block is a way to
partition all of it at once: it starts as a factor of the entry contraction and follows the ops' sharding rules from dim
to dim. One pass in program order. Invariants: for each side that a block requires (batch, or left and right) each
member's result is split by a usable factor; a factor is invalidated by the first member that would need communication.
"""

import math

from alpa_cfp.analysis.contractions import Side
from alpa_cfp.analysis.extension import Extension, find_extension
from alpa_cfp.analysis.gradients import GradientGroup
from alpa_cfp.analysis.graph import BARRIER, Graph, Op
from alpa_cfp.analysis.partial_block import Factor, PartialBlock, PartialBlocks
from alpa_cfp.analysis.structure import Structure, is_parameter


class BlockBuilder(PartialBlocks):
    """The pass over a graph.

    Args:
        graph, structure, groups: As of `PartialBlocks`.
    """

    def __init__(self, graph: Graph, structure: Structure, groups: tuple[GradientGroup, ...]) -> None:
        super().__init__(graph, structure, groups)
        self.group_of_op = {member.op: i for i, group in enumerate(groups) for member in group.members}
        self.forward_of = {group.forward.op: i for i, group in enumerate(groups)}

    def run(self) -> "BlockBuilder":
        """Visit every op once."""
        for op in self.graph.ops:
            self.visit(op)
        return self

    def originals(self) -> list[int]:
        """For each op the op that it rematerialises; the op itself where there is none.

        An equal op that depends on no contraction, such as the causal mask of a layer, counts as an op of its own.
        """
        return [
            original if any(self.descends_from[result] for result in self.graph.ops[original].results) else op
            for op, original in enumerate(self.structure.original)
        ]

    def visit(self, op: Op) -> None:
        if self.graph.constant_derived[op.index]:
            return
        if op.name == BARRIER:
            for operand, result in zip(op.operands, op.results, strict=True):
                self.copy(operand, result)
            return
        original = self.structure.original[op.index]
        if original != op.index:
            for mine, its in zip(op.results, self.graph.ops[original].results, strict=True):
                self.copy(its, mine)
            self.block_of_op[op.index] = self.block_of_op[original]
            return
        descends_from = 0
        for operand in op.operands:
            descends_from |= self.descends_from[operand]
        for result in op.results:
            self.descends_from[result] = descends_from
        group = self.group_of_op.get(op.index)
        if group is None:
            self.try_to_join(op)
        elif op.index in self.forward_of and not self.try_to_join_as_contraction(op, group):
            self.start(op, group)

    def copy(self, source: int, target: int) -> None:
        self.block_of_value[target] = self.block_of_value[source]
        self.dim_factors[target] = self.dim_factors[source]
        self.descends_from[target] = self.descends_from[source]

    def start(self, op: Op, group: int) -> None:
        """Start a block at a contraction."""
        contraction = self.groups[group].forward
        rule = op.rule
        if rule is None:
            return
        number = len(self.blocks)
        left, right = (is_parameter(self.graph, self.structure, value) for value in contraction.operands)
        swap = left and not right
        numbers: dict[int, int] = {}
        for factor, side in contraction.sides.items():
            numbers[factor] = len(self.factors)
            self.factor_parent.append(len(self.factors))
            # Along a reduction factor the entry's result is a partial sum, through which nothing propagates.
            usable = side is not Side.REDUCTION
            self.factors.append(
                Factor(number, side.swapped if swap else side, rule.sizes[factor], usable, [(op.index, factor)])
            )
        self.parent.append(number)
        entry_origins = {
            self.structure.origin[value]: (group, i) for i, value in reversed([*enumerate(contraction.operands)])
        }
        required = {side.swapped if swap else side for side in contraction.required}
        ancestors = self.descends_from[op.results[0]]
        block = PartialBlock(
            [group], 1 << number, ancestors, frozenset(required), list(numbers.values()), entry_origins
        )
        self.blocks.append(block)
        lhs, rhs, result = (
            {dim: numbers[f] for dim, f in enumerate(dims) if f is not None} for dims in contraction.dims
        )
        block.entry_operands.update(contraction.operands)
        needs = dict(zip(contraction.operands, (lhs, rhs), strict=True))
        # One value has one partition: in a product of a value with itself, both operands must be split alike.
        is_square = contraction.operands[0] == contraction.operands[1]
        invalidated = {f for _, f in lhs.items() ^ rhs.items()} if is_square else set[int]()
        self.accept(op, number, Extension([result], invalidated, {}, {}, {}, needs))

    def accept(self, op: Op, block: int, extension: Extension) -> None:
        for number, representative in extension.equal.items():
            self.join_factors(number, representative)
        for number in extension.invalidated:
            self.factors[self.factor(number)].usable = False
        for number, max_shards in extension.max_shards.items():
            factor = self.factors[self.factor(number)]
            factor.max_shards = math.gcd(factor.max_shards, max_shards)
        for rule_factor, number in extension.of_rule.items():
            if op.index in self.forward_of:
                self.factors[self.factor(number)].places.append((op.index, rule_factor))
        for value, dim_factors in extension.needs.items():
            self.blocks[block].needs.setdefault(value, dim_factors)
        for value in op.operands:
            if not self.is_inside(value, [block]):
                self.blocks[block].ancestors |= self.descends_from[value]
        self.block_of_op[op.index] = block
        for result, dim_factors in zip(op.results, extension.results, strict=True):
            self.block_of_value[result] = block
            self.dim_factors[result] = dim_factors
            self.descends_from[result] |= self.blocks[block].mask

    def operand_blocks(self, op: Op) -> list[int]:
        """The blocks of the operands, the latest first."""
        found = {self.root(self.block_of_value[v]) for v in op.operands if self.block_of_value[v] >= 0}
        return sorted(found, key=lambda block: self.blocks[block].groups[-1], reverse=True)

    def is_cut_off(self, op: Op, blocks: list[int]) -> bool:
        """Whether an operand is computed from the entry of one of the blocks but belongs to none of them."""
        mask = 0
        for block in blocks:
            mask |= self.blocks[block].mask
        return any(self.descends_from[v] & mask and not self.is_inside(v, blocks) for v in op.operands)

    def try_to_join(self, op: Op) -> None:
        """Add an op to the block of an operand, after merging two such blocks if they share an entry operand."""
        blocks = self.operand_blocks(op)
        if not blocks or op.rule is None:
            return
        for i, first in enumerate(blocks):
            for second in blocks[i + 1 :]:
                equal = self.equal_factors(first, second)
                if equal is not None and self.try_to_extend(op, [first, second], equal):
                    return
        for block in sorted(blocks, key=lambda block: self.split_elements(op, block), reverse=True):
            if self.try_to_extend(op, [block], {}):
                return

    def split_elements(self, op: Op, block: int) -> tuple[int, int]:
        """The elements before broadcasts of an operand from a block that its factors split, and the sizes of the dims
        that these split, multiplied; of the largest such operand.

        What joins a block is split along these dims alone: the sum of looked up words, split by samples too, and of
        positions, which all samples share, belongs to the words, and a bias that all samples share is added to scores
        of attention where these are.
        """
        most = 0, 1
        for value in op.operands:
            if self.is_inside(value, [block]):
                factors = {dim: self.factors[self.factor(number)] for dim, number in self.dim_factors[value].items()}
                split = [dim for dim, factor in factors.items() if factor.usable and factor.max_shards > 1]
                if split:
                    sizes = math.prod(self.graph.shape(value)[dim] for dim in split)
                    most = max(most, (self.graph.elements(value), sizes))
        return most

    def try_to_join_as_contraction(self, op: Op, group: int) -> bool:
        """Add a contraction to the block of both operands, or to two blocks that share an entry operand."""
        inside = [v for v in self.groups[group].forward.operands if self.block_of_value[v] >= 0]
        if len(inside) < 2:
            return False
        blocks = self.operand_blocks(op)
        equal = {} if len(blocks) == 1 else self.equal_factors(blocks[0], blocks[1]) if len(blocks) == 2 else None
        if equal is None or not self.try_to_extend(op, blocks, equal):
            return False
        self.blocks[self.root(self.block_of_op[op.index])].groups.append(group)
        return True

    def try_to_extend(self, op: Op, blocks: list[int], equal: dict[int, int]) -> bool:
        if op.rule is None or self.is_cut_off(op, blocks):
            return False
        extension = find_extension(self, op, op.rule, blocks, equal)
        if extension is None:
            return False
        into = blocks[-1]
        for block in blocks[:-1]:
            self.merge(block, into)
        self.accept(op, into, extension)
        return True
