"""Extends each ParallelBlock from its contraction to the ops through which its partitions propagate.

A partition propagates through an op that needs no communication for it. Takes a graph and its gradient groups; gives
for each op the block that it is a member of, or none, and for each block its factors. A *factor* of a block is a way to
partition all of it at once: it starts as a factor of the entry contraction and follows the ops' sharding rules from dim
to dim. One pass in program order. Invariants: for each side that a block requires (batch, or left and right) each
member's result is split by a usable factor; a factor is invalidated by the first member that would need communication.
"""

import math

from alpa_cfp.analysis.contractions import Contraction, Side
from alpa_cfp.analysis.gradients import GradientGroup
from alpa_cfp.analysis.graph import BARRIER, Graph, Op
from alpa_cfp.analysis.partial_block import DimFactors, Extension, Factor, PartialBlock
from alpa_cfp.analysis.rules import FactorKind, Rule
from alpa_cfp.analysis.structure import Structure, is_parameter


class BlockBuilder:
    """The pass over a graph.

    After `run`, `block_of_op` has for each op the number of its block (see `root`) or -1, and `dim_factors` has for
    each value its partition in its block.
    """

    def __init__(self, graph: Graph, structure: Structure, groups: tuple[GradientGroup, ...]):
        self.graph, self.structure, self.groups = graph, structure, groups
        self.group_of_op = {member.op: i for i, group in enumerate(groups) for member in group.members}
        self.forward_of = {group.forward.op: i for i, group in enumerate(groups)}
        self.parent: list[int] = []  # blocks, as a forest
        self.blocks: list[PartialBlock] = []
        self.factors: list[Factor] = []
        self.factor_parent: list[int] = []
        self.block_of_value = [-1] * len(graph.values)
        self.dim_factors: list[DimFactors] = [{} for _ in graph.values]
        self.descends_from = [0] * len(graph.values)
        self.block_of_op = [-1] * len(graph.ops)

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

    def root(self, block: int) -> int:
        """The block that `block` has been merged into."""
        while self.parent[block] != block:
            self.parent[block] = self.parent[self.parent[block]]
            block = self.parent[block]
        return block

    def factor(self, number: int, equal: dict[int, int] | None = None) -> int:
        """The factor that represents a factor after all merges, and after those of an extension on trial (`equal`)."""
        while True:
            while self.factor_parent[number] != number:
                self.factor_parent[number] = self.factor_parent[self.factor_parent[number]]
                number = self.factor_parent[number]
            if equal is None or number not in equal:
                return number
            number = equal[number]

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

    def join_factors(self, number: int, representative: int) -> None:
        number, representative = self.factor(number), self.factor(representative)
        if number == representative:
            return
        absorbed, merged = self.factors[number], self.factors[representative]
        self.factor_parent[number] = representative
        merged.max_shards = math.gcd(merged.max_shards, absorbed.max_shards)
        merged.usable = merged.usable and absorbed.usable
        merged.places += absorbed.places

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

    def is_inside(self, value: int, blocks: list[int]) -> bool:
        return self.block_of_value[value] >= 0 and self.root(self.block_of_value[value]) in blocks

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

    def split_elements(self, op: Op, block: int) -> int:
        """The sizes of all dims of an operand from a block that its factors split, multiplied.

        What joins a block is split along these alone: the sum of looked up words, split by samples too, and of
        positions, which all samples share, belongs to the words.
        """
        sizes = 1
        for value in op.operands:
            if self.is_inside(value, [block]):
                usable = [
                    dim for dim, number in self.dim_factors[value].items() if self.factors[self.factor(number)].usable
                ]
                sizes = max(sizes, math.prod(self.graph.shape(value)[dim] for dim in usable))
        return sizes

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
        extension = self.extension(op, op.rule, blocks, dict(equal))
        if extension is None:
            return False
        into = blocks[-1]
        for block in blocks[:-1]:
            self.merge(block, into)
        self.accept(op, into, extension)
        return True

    def equal_factors(self, first: int, second: int) -> dict[int, int] | None:
        """The factors of two blocks that are equal because they split the same dim of a common entry operand.

        None if there is no such operand, or if one block uses values that are computed from the other.
        """
        if self.blocks[first].ancestors & self.blocks[second].mask:
            return None
        if self.blocks[second].ancestors & self.blocks[first].mask:
            return None
        for value, (group, operand) in self.blocks[first].entry_origins.items():
            if value not in self.blocks[second].entry_origins:
                continue
            its_group, its_operand = self.blocks[second].entry_origins[value]
            mine, its = (self.by_origin_dim(f, i) for f, i in ((group, operand), (its_group, its_operand)))
            return {f: its[dim] for dim, f in mine.items() if dim in its and self.factor(f) != self.factor(its[dim])}
        return None

    def by_origin_dim(self, group: int, operand: int) -> dict[int, int]:
        """The block factors that split an entry operand, by the dim of its origin."""
        contraction: Contraction = self.groups[group].forward
        numbers = self.entry_factors(contraction)
        dims = self.structure.origin_dims[contraction.operands[operand]]
        return {
            dim: self.factor(numbers[f])
            for dim, f in zip(dims, contraction.dims[operand], strict=True)
            if dim is not None and f is not None and f in numbers
        }

    def entry_factors(self, contraction: Contraction) -> dict[int, int]:
        """The block factor of each factor of an entry contraction."""
        block = self.blocks[self.root(self.block_of_op[contraction.op])]
        return {
            rule_factor: number
            for number in block.factors
            for op, rule_factor in self.factors[self.factor(number)].places
            if op == contraction.op
        }

    def merge(self, block: int, into: int) -> None:
        absorbed, merged = self.blocks[block], self.blocks[into]
        self.parent[block] = into
        merged.groups = sorted({*merged.groups, *absorbed.groups})
        merged.mask |= absorbed.mask
        merged.ancestors |= absorbed.ancestors
        merged.required |= absorbed.required
        merged.factors += absorbed.factors
        merged.entry_origins = absorbed.entry_origins | merged.entry_origins
        merged.needs = absorbed.needs | merged.needs
        merged.entry_operands |= absorbed.entry_operands

    def extension(self, op: Op, rule: Rule, blocks: list[int], equal: dict[int, int]) -> Extension | None:
        """The effects of adding `op` to the factors; None if a required side would lose its last usable factor."""
        extension = Extension([], set(), {}, equal, {}, {})
        op_factor_of: dict[int, int] = {}  # for each factor of the block the op's factor that it splits
        for position, value in enumerate(op.operands):
            if self.is_inside(value, blocks):
                self.split_operand(rule, rule.operands[position], self.dim_factors[value], extension, op_factor_of)
        for position, value in enumerate(op.operands):
            if not self.is_inside(value, blocks):
                self.need_operand(value, rule, rule.operands[position], blocks, extension)
        for dims in rule.results:
            dim_factors: DimFactors = {}
            for dim, factors in enumerate(dims):
                major = rule.major_factor(factors)
                if major in extension.of_rule:
                    dim_factors[dim] = extension.of_rule[major]
            extension.invalidated |= op_factor_of.keys() - dim_factors.values()
            extension.results.append(dim_factors)
        return extension if self.keeps_required_sides(blocks, extension) else None

    def split_operand(
        self,
        rule: Rule,
        dims: tuple[tuple[int, ...], ...],
        dim_factors: DimFactors,
        extension: Extension,
        op_factor_of: dict[int, int],
    ) -> None:
        for dim, number in dim_factors.items():
            number = self.factor(number, extension.equal)
            if not self.factors[number].usable or number in extension.invalidated:
                continue
            major = rule.major_factor(dims[dim])
            if major is None or rule.kinds[major] is not FactorKind.PLAIN or op_factor_of.get(number, major) != major:
                extension.invalidated.add(number)
                continue
            present = extension.of_rule.get(major)
            if present is not None and present != number:
                if not self.can_be_equal(present, number, op_factor_of):
                    extension.invalidated.add(number)
                    continue
                extension.equal[number] = present
                number = present
            extension.of_rule[major] = number
            op_factor_of[number] = major
            max_shards = math.gcd(self.factors[number].max_shards, rule.sizes[major])
            extension.max_shards[number] = math.gcd(extension.max_shards.get(number, max_shards), max_shards)

    def need_operand(
        self, value: int, rule: Rule, dims: tuple[tuple[int, ...], ...], blocks: list[int], extension: Extension
    ) -> None:
        """Note the partition of an operand from outside; invalidate factors for which another member needs another."""
        producer = self.graph.producer(value)
        if not dims or (producer is not None and self.graph.constant_derived[producer.index]):
            return
        majors = (rule.major_factor(factors) for factors in dims)
        now = {d: extension.of_rule[major] for d, major in enumerate(majors) if major in extension.of_rule}
        earlier = [self.blocks[block].needs[value] for block in blocks if value in self.blocks[block].needs]
        if value in extension.needs:
            earlier.append(extension.needs[value])
        is_entry_operand = any(value in self.blocks[block].entry_operands for block in blocks)
        for dim_factors in earlier:
            before = {(d, self.factor(number, extension.equal)) for d, number in dim_factors.items()}
            split_before = {number for _, number in before}
            for dim, number in before ^ set(now.items()):
                # If an entry has the operand replicated, each device can slice it without communication.
                if not is_entry_operand or number in split_before or (dim, number) in before:
                    extension.invalidated.add(number)
        extension.needs.setdefault(value, now)

    def can_be_equal(self, present: int, other: int, op_factor_of: dict[int, int]) -> bool:
        """Whether two factors that split the same factor of an op are equal: on one side, of blocks being merged."""
        first, second = self.factors[present], self.factors[other]
        return (
            first.side is second.side
            and other not in op_factor_of
            and self.root(first.block) != self.root(second.block)
        )

    def keeps_required_sides(self, blocks: list[int], extension: Extension) -> bool:
        usable_sides: set[Side] = set()
        for dim_factors in extension.results[:1]:
            for number in dim_factors.values():
                number = self.factor(number, extension.equal)
                max_shards = math.gcd(self.factors[number].max_shards, extension.max_shards.get(number, 0))
                if self.factors[number].usable and number not in extension.invalidated and max_shards > 1:
                    usable_sides.add(self.factors[number].side)
        return all(side in usable_sides for block in blocks for side in self.blocks[block].required)
