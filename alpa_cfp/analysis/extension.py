"""What adding an op to a ParallelBlock does to the block's factors.

Takes `PartialBlocks`, an op and the blocks that it would join as one; gives an `Extension`, or none if one of these
would lose its last usable factor of a side that it requires. Invariant: nothing is changed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from alpa_cfp.analysis.contractions import Side
from alpa_cfp.analysis.graph import Op
from alpa_cfp.analysis.partial_block import DimFactors, PartialBlocks
from alpa_cfp.analysis.rules import FactorKind, Rule

# For each dim of a value the factors of an op's rule.
RuleDims = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Extension:
    """The effects of adding an op to a block.

    Attributes:
        results: The partition of each result.
        invalidated: Factors that are not usable any more.
        max_shards: New limits of factors.
        equal: Factors that become one with another factor.
        of_rule: For each factor of the op's rule that is split, the factor of the block that splits it.
        needs: The partitions in which the op needs values from outside.
    """

    results: list[DimFactors]
    invalidated: set[int]
    max_shards: dict[int, int]
    equal: dict[int, int]
    of_rule: dict[int, int]
    needs: dict[int, DimFactors]


def find_extension(
    partial: PartialBlocks, op: Op, rule: Rule, blocks: Sequence[int], equal: Mapping[int, int]
) -> Extension | None:
    """The effects of adding an op to blocks; None if a required side would lose its last usable factor.

    Args:
        partial: The blocks and factors so far.
        op: The op.
        rule: Its sharding rule.
        blocks: The block, or two that are merged then.
        equal: Factors that are equal after merging them.
    """
    trial = _Trial(partial, rule, blocks, Extension([], set(), {}, dict(equal), {}, {}))
    for position, value in enumerate(op.operands):
        if partial.is_inside(value, blocks):
            trial.split_operand(value, rule.operands[position])
    for position, value in enumerate(op.operands):
        if not partial.is_inside(value, blocks):
            trial.need_operand(value, rule.operands[position])
    for dims in rule.results:
        trial.split_result(dims)
    return trial.extension if trial.keeps_required_sides() else None


class _Trial:
    """An extension on trial."""

    def __init__(self, partial: PartialBlocks, rule: Rule, blocks: Sequence[int], extension: Extension) -> None:
        self.partial, self.rule, self.blocks, self.extension = partial, rule, blocks, extension
        # For each factor of the block the op's factor that it splits.
        self._op_factor_of: dict[int, int] = {}

    def split_operand(self, value: int, dims: RuleDims) -> None:
        """Follow the factors that split an operand from inside; those that would need communication are invalidated."""
        extension, factors, rule = self.extension, self.partial.factors, self.rule
        for dim, number in self.partial.dim_factors[value].items():
            number = self.partial.factor(number, extension.equal)
            if not factors[number].usable or number in extension.invalidated:
                continue
            major = rule.major_factor(dims[dim])
            if (
                major is None
                or rule.kinds[major] is not FactorKind.PLAIN
                or self._op_factor_of.get(number, major) != major
            ):
                extension.invalidated.add(number)
                continue
            present = extension.of_rule.get(major)
            if present is not None and present != number:
                if not self._can_be_equal(present, number):
                    extension.invalidated.add(number)
                    continue
                extension.equal[number] = present
                number = present
            extension.of_rule[major] = number
            self._op_factor_of[number] = major
            max_shards = math.gcd(factors[number].max_shards, rule.sizes[major])
            extension.max_shards[number] = math.gcd(extension.max_shards.get(number, max_shards), max_shards)

    def need_operand(self, value: int, dims: RuleDims) -> None:
        """Note the partition of an operand from outside; invalidate factors for which another member needs another."""
        graph, extension = self.partial.graph, self.extension
        producer = graph.producer(value)
        if not dims or (producer is not None and graph.constant_derived[producer.index]):
            return
        majors = (self.rule.major_factor(factors) for factors in dims)
        now = {d: extension.of_rule[major] for d, major in enumerate(majors) if major in extension.of_rule}
        own = [self.partial.blocks[block] for block in self.blocks]
        earlier = [each.needs[value] for each in (*own, extension) if value in each.needs]
        is_entry_operand = any(value in each.entry_operands for each in own)
        for dim_factors in earlier:
            before = {(d, self.partial.factor(number, extension.equal)) for d, number in dim_factors.items()}
            split_before = {number for _, number in before}
            for dim, number in before ^ set(now.items()):
                # If an entry has the operand replicated, each device can slice it without communication.
                if not is_entry_operand or number in split_before or (dim, number) in before:
                    extension.invalidated.add(number)
        extension.needs.setdefault(value, now)

    def split_result(self, dims: RuleDims) -> None:
        """Follow the factors into a result; those that do not reach it are invalidated."""
        extension, found = self.extension, DimFactors()
        for dim, factors in enumerate(dims):
            major = self.rule.major_factor(factors)
            if major in extension.of_rule:
                found[dim] = extension.of_rule[major]
        extension.invalidated |= self._op_factor_of.keys() - found.values()
        extension.results.append(found)

    def _can_be_equal(self, present: int, other: int) -> bool:
        """Whether two factors that split the same factor of an op are equal: on one side, of blocks being merged."""
        first, second = self.partial.factors[present], self.partial.factors[other]
        return (
            first.side is second.side
            and other not in self._op_factor_of
            and self.partial.root(first.block) != self.partial.root(second.block)
        )

    def keeps_required_sides(self) -> bool:
        """Whether each side that a block requires has a usable factor that splits the first result."""
        extension, usable_sides = self.extension, set[Side]()
        for dim_factors in extension.results[:1]:
            for number in dim_factors.values():
                number = self.partial.factor(number, extension.equal)
                factor = self.partial.factors[number]
                max_shards = math.gcd(factor.max_shards, extension.max_shards.get(number, 0))
                if factor.usable and number not in extension.invalidated and max_shards > 1:
                    usable_sides.add(factor.side)
        return all(side in usable_sides for block in self.blocks for side in self.partial.blocks[block].required)
