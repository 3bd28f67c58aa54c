"""Grow ParallelBlocks from their contractions through every op that a partition passes without communication.

Takes a graph and its families of contractions; gives for each op the block that it is a member of, or none, and for
each block its factors. A *factor* of a block is a way to partition all of it at once: it starts as a factor of the
entry contraction and follows the ops' rules from dim to dim. One pass in program order. Invariants: of each side that a
block requires (batch, or left and right) every member's result carries a live factor; a factor is dead once some
member would need communication for it.
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

    After `run`, `block_of_op` has for each op the number of a block (see `root`) or -1, and `tags` has for each value
    how the block that it is inside of splits it.
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
        self.tags: list[DimFactors] = [{} for _ in graph.values]
        self.descends = [0] * len(graph.values)
        self.block_of_op = [-1] * len(graph.ops)

    def run(self) -> "BlockBuilder":
        """Visit every op once."""
        for op in self.graph.ops:
            self.visit(op)
        return self

    def recomputed(self) -> list[int]:
        """For each op the one that it computes again, itself where there is none.

        What depends on no contraction, such as a mask that each layer makes for itself, is not taken for a clone.
        """
        return [
            original if any(self.descends[result] for result in self.graph.ops[original].results) else op
            for op, original in enumerate(self.structure.original)
        ]

    def root(self, block: int) -> int:
        """The block that `block` has been merged into."""
        while self.parent[block] != block:
            self.parent[block] = self.parent[self.parent[block]]
            block = self.parent[block]
        return block

    def factor(self, number: int, equal: dict[int, int] | None = None) -> int:
        """The factor that a factor has been made equal to, also by a merge that is only being tried (`equal`)."""
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
        descends = 0
        for operand in op.operands:
            descends |= self.descends[operand]
        for result in op.results:
            self.descends[result] = descends
        group = self.group_of_op.get(op.index)
        if group is None:
            self.try_to_join(op)
        elif op.index in self.forward_of and not self.try_to_join_as_contraction(op, group):
            self.start(op, group)

    def copy(self, source: int, target: int) -> None:
        self.block_of_value[target] = self.block_of_value[source]
        self.tags[target] = self.tags[source]
        self.descends[target] = self.descends[source]

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
            # A reduction factor splits the entry, but its result is then a partial sum that nothing grows through.
            usable = side is not Side.REDUCTION
            self.factors.append(
                Factor(number, side.swapped if swap else side, rule.sizes[factor], usable, [(op.index, factor)])
            )
        self.parent.append(number)
        shared = {self.structure.origin[value]: (group, i) for i, value in reversed([*enumerate(contraction.operands)])}
        required = {side.swapped if swap else side for side in contraction.required}
        ancestors = self.descends[op.results[0]]
        block = PartialBlock([group], 1 << number, ancestors, frozenset(required), list(numbers.values()), shared)
        self.blocks.append(block)
        lhs, rhs, result = (
            {dim: numbers[f] for dim, f in enumerate(dims) if f is not None} for dims in contraction.dims
        )
        block.entry_operands.update(contraction.operands)
        needs = dict(zip(contraction.operands, (lhs, rhs), strict=True))
        # One value cannot be split in two ways: of a product of a value with itself only what both agree on can be.
        same = contraction.operands[0] == contraction.operands[1]
        invalidated = {f for _, f in lhs.items() ^ rhs.items()} if same else set[int]()
        self.accept(op, number, Extension([result], invalidated, {}, {}, {}, needs))

    def accept(self, op: Op, block: int, step: Extension) -> None:
        for number, representative in step.equal.items():
            self.join_factors(number, representative)
        for number in step.invalidated:
            self.factors[self.factor(number)].usable = False
        for number, max_shards in step.max_shards.items():
            factor = self.factors[self.factor(number)]
            factor.max_shards = math.gcd(factor.max_shards, max_shards)
        for rule_factor, number in step.of_rule.items():
            if op.index in self.forward_of:
                self.factors[self.factor(number)].places.append((op.index, rule_factor))
        for value, tags in step.needs.items():
            self.blocks[block].needs.setdefault(value, tags)
        for value in op.operands:
            if not self.is_inside(value, [block]):
                self.blocks[block].ancestors |= self.descends[value]
        self.block_of_op[op.index] = block
        for result, tags in zip(op.results, step.tags, strict=True):
            self.block_of_value[result] = block
            self.tags[result] = tags
            self.descends[result] |= self.blocks[block].mask

    def join_factors(self, number: int, representative: int) -> None:
        number, representative = self.factor(number), self.factor(representative)
        if number == representative:
            return
        gone, kept = self.factors[number], self.factors[representative]
        self.factor_parent[number] = representative
        kept.max_shards = math.gcd(kept.max_shards, gone.max_shards)
        kept.usable = kept.usable and gone.usable
        kept.places += gone.places

    def operand_blocks(self, op: Op) -> list[int]:
        """The blocks that operands are inside of, the latest first."""
        found = {self.root(self.block_of_value[v]) for v in op.operands if self.block_of_value[v] >= 0}
        return sorted(found, key=lambda block: self.blocks[block].groups[-1], reverse=True)

    def is_cut_off(self, op: Op, blocks: list[int]) -> bool:
        """Whether an operand descends from the entry of one of the blocks but is inside of none of them."""
        mask = 0
        for block in blocks:
            mask |= self.blocks[block].mask
        return any(self.descends[v] & mask and not self.is_inside(v, blocks) for v in op.operands)

    def is_inside(self, value: int, blocks: list[int]) -> bool:
        return self.block_of_value[value] >= 0 and self.root(self.block_of_value[value]) in blocks

    def try_to_join(self, op: Op) -> None:
        """Take an ordinary op into the block of an operand, after merging two such blocks if they belong together."""
        blocks = self.operand_blocks(op)
        if not blocks or op.rule is None:
            return
        for i, first in enumerate(blocks):
            for second in blocks[i + 1 :]:
                equal = self.equal_factors(first, second)
                if equal is not None and self.try_step(op, [first, second], equal):
                    return
        for block in blocks:
            if self.try_step(op, [block], {}):
                return

    def try_to_join_as_contraction(self, op: Op, group: int) -> bool:
        """Take a contraction in if both operands are inside one block, or inside two that belong together."""
        inside = [v for v in self.groups[group].forward.operands if self.block_of_value[v] >= 0]
        if len(inside) < 2:
            return False
        blocks = self.operand_blocks(op)
        equal = {} if len(blocks) == 1 else self.equal_factors(blocks[0], blocks[1]) if len(blocks) == 2 else None
        if equal is None or not self.try_step(op, blocks, equal):
            return False
        self.blocks[self.root(self.block_of_op[op.index])].groups.append(group)
        return True

    def try_step(self, op: Op, blocks: list[int], equal: dict[int, int]) -> bool:
        if op.rule is None or self.is_cut_off(op, blocks):
            return False
        step = self.step(op, op.rule, blocks, dict(equal))
        if step is None:
            return False
        into = blocks[-1]
        for block in blocks[:-1]:
            self.merge(block, into)
        self.accept(op, into, step)
        return True

    def equal_factors(self, first: int, second: int) -> dict[int, int] | None:
        """The factors of two blocks that are the same because an entry operand is.

        None if no entry operand is, or if one block needs what is computed from the other.
        """
        if self.blocks[first].ancestors & self.blocks[second].mask:
            return None
        if self.blocks[second].ancestors & self.blocks[first].mask:
            return None
        for value, (group, operand) in self.blocks[first].shared.items():
            if value not in self.blocks[second].shared:
                continue
            its_family, its_operand = self.blocks[second].shared[value]
            mine, its = (self.by_origin_dim(f, i) for f, i in ((group, operand), (its_family, its_operand)))
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
        gone, kept = self.blocks[block], self.blocks[into]
        self.parent[block] = into
        kept.groups = sorted({*kept.groups, *gone.groups})
        kept.mask |= gone.mask
        kept.ancestors |= gone.ancestors
        kept.required |= gone.required
        kept.factors += gone.factors
        kept.shared = gone.shared | kept.shared
        kept.needs = gone.needs | kept.needs
        kept.entry_operands |= gone.entry_operands

    def step(self, op: Op, rule: Rule, blocks: list[int], equal: dict[int, int]) -> Extension | None:
        """What taking `op` in would do to the factors; None if a required side would lose its last one."""
        step = Extension([], set(), {}, equal, {}, {})
        place: dict[int, int] = {}  # block factor -> the op's factor that it splits
        for position, value in enumerate(op.operands):
            if self.is_inside(value, blocks):
                self.place_operand(rule, rule.operands[position], self.tags[value], step, place)
        for position, value in enumerate(op.operands):
            if not self.is_inside(value, blocks):
                self.need_operand(value, rule, rule.operands[position], blocks, step)
        for dims in rule.results:
            tags: DimFactors = {}
            for dim, factors in enumerate(dims):
                major = rule.major_factor(factors)
                if major in step.of_rule:
                    tags[dim] = step.of_rule[major]
            step.invalidated |= place.keys() - tags.values()
            step.tags.append(tags)
        return step if self.keeps_required_sides(blocks, step) else None

    def place_operand(
        self, rule: Rule, dims: tuple[tuple[int, ...], ...], tags: DimFactors, step: Extension, place: dict[int, int]
    ) -> None:
        for dim, number in tags.items():
            number = self.factor(number, step.equal)
            if not self.factors[number].usable or number in step.invalidated:
                continue
            major = rule.major_factor(dims[dim])
            if major is None or rule.kinds[major] is not FactorKind.PLAIN or place.get(number, major) != major:
                step.invalidated.add(number)
                continue
            present = step.of_rule.get(major)
            if present is not None and present != number:
                if not self.can_be_one(present, number, place):
                    step.invalidated.add(number)
                    continue
                step.equal[number] = present
                number = present
            step.of_rule[major] = number
            place[number] = major
            max_shards = math.gcd(self.factors[number].max_shards, rule.sizes[major])
            step.max_shards[number] = math.gcd(step.max_shards.get(number, max_shards), max_shards)

    def need_operand(
        self, value: int, rule: Rule, dims: tuple[tuple[int, ...], ...], blocks: list[int], step: Extension
    ) -> None:
        """Note how an operand from outside must be split; kill what another member needs to be split differently."""
        producer = self.graph.producer(value)
        if not dims or (producer is not None and self.graph.constant_derived[producer.index]):
            return
        majors = (rule.major_factor(factors) for factors in dims)
        now = {d: step.of_rule[major] for d, major in enumerate(majors) if major in step.of_rule}
        earlier = [self.blocks[block].needs[value] for block in blocks if value in self.blocks[block].needs]
        if value in step.needs:
            earlier.append(step.needs[value])
        is_entry_operand = any(value in self.blocks[block].entry_operands for block in blocks)
        for tags in earlier:
            before = {(d, self.factor(number, step.equal)) for d, number in tags.items()}
            split_before = {number for _, number in before}
            for dim, number in before ^ set(now.items()):
                # What an entry has whole every device can slice for itself.
                if not is_entry_operand or number in split_before or (dim, number) in before:
                    step.invalidated.add(number)
        step.needs.setdefault(value, now)

    def can_be_one(self, present: int, other: int, place: dict[int, int]) -> bool:
        """Whether two factors that split the same factor of an op are one: on one side, of blocks being merged."""
        first, second = self.factors[present], self.factors[other]
        return first.side is second.side and other not in place and self.root(first.block) != self.root(second.block)

    def keeps_required_sides(self, blocks: list[int], step: Extension) -> bool:
        live: set[Side] = set()
        for tags in step.tags[:1]:
            for number in tags.values():
                number = self.factor(number, step.equal)
                max_shards = math.gcd(self.factors[number].max_shards, step.max_shards.get(number, 0))
                if self.factors[number].usable and number not in step.invalidated and max_shards > 1:
                    live.add(self.factors[number].side)
        return all(side in live for block in blocks for side in self.blocks[block].required)
