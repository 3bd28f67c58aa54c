"""Blocks while they are built: which value is in which one, and the factors that split them.

Takes a graph and its gradient groups; gives `PartialBlocks`, which `block_builder` extends and `siblings` merges;
`blocks` makes the frozen results of them. Invariants: a block that was merged is known by the one that it became part
of, and so is a factor.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from alpa_cfp.analysis.contractions import Contraction, Side
from alpa_cfp.analysis.gradients import GradientGroup
from alpa_cfp.analysis.graph import Graph
from alpa_cfp.analysis.structure import Structure

# The partition of a value: for each dim that is split, the number of the factor that splits it.
DimFactors = dict[int, int]


@dataclass(slots=True)
class Factor:
    """A factor of a partial block.

    Attributes:
        block: The block whose entry it is a factor of.
        side: Its side in the entry contraction; left is that of the operand that is no parameter.
        max_shards: The most parts into which it can split every member; each count that works divides it.
        usable: Whether no member needs communication for it.
        places: (op, factor of that op's rule) for each contraction of the block that it splits.
    """

    block: int
    side: Side
    max_shards: int
    usable: bool = True
    places: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class PartialBlock:
    """A block under construction.

    Attributes:
        groups: Indices of its gradient groups.
        mask: A bit for each entry that has been merged into it.
        ancestors: The bits of the entries from which its inputs are computed.
        required: The sides on which at least one factor must stay usable.
        factors: Numbers of its factors.
        entry_origins: For the origin of each entry operand (gradient group, operand).
        needs: The partitions in which members need values from outside, entry operands included.
        entry_operands: The operands of the entry contractions.
    """

    groups: list[int]
    mask: int
    ancestors: int
    required: frozenset[Side]
    factors: list[int]
    entry_origins: dict[int, tuple[int, int]]
    needs: dict[int, DimFactors] = field(default_factory=dict)
    entry_operands: set[int] = field(default_factory=set)


class PartialBlocks:
    """The blocks of a graph under construction.

    Args:
        graph, structure, groups: The graph, what is computed twice in it, and its gradient groups.

    Attributes:
        graph, structure, groups: As given.
        blocks, factors: All of them; those that were merged, too (see `root` and `factor`).
        parent, factor_parent: For each block and factor the one that it was merged into, or itself.
        block_of_op: For each op the number of its block (see `root`), or -1.
        block_of_value: The same for values.
        dim_factors: For each value its partition in its block.
        descends_from: For each value the bits of the entries from which it is computed.
    """

    def __init__(self, graph: Graph, structure: Structure, groups: tuple[GradientGroup, ...]) -> None:
        self.graph, self.structure, self.groups = graph, structure, groups
        self.parent: list[int] = []
        self.blocks: list[PartialBlock] = []
        self.factors: list[Factor] = []
        self.factor_parent: list[int] = []
        self.block_of_value = [-1] * len(graph.values)
        self.dim_factors: list[DimFactors] = [{} for _ in graph.values]
        self.descends_from = [0] * len(graph.values)
        self.block_of_op = [-1] * len(graph.ops)

    def root(self, block: int) -> int:
        """The block that `block` has been merged into."""
        while self.parent[block] != block:
            self.parent[block] = self.parent[self.parent[block]]
            block = self.parent[block]
        return block

    def factor(self, number: int, equal: Mapping[int, int] | None = None) -> int:
        """The factor that represents a factor after all merges, and after those of an extension on trial (`equal`)."""
        while True:
            while self.factor_parent[number] != number:
                self.factor_parent[number] = self.factor_parent[self.factor_parent[number]]
                number = self.factor_parent[number]
            if equal is None or number not in equal:
                return number
            number = equal[number]

    def join_factors(self, number: int, representative: int) -> None:
        number, representative = self.factor(number), self.factor(representative)
        if number == representative:
            return
        absorbed, merged = self.factors[number], self.factors[representative]
        self.factor_parent[number] = representative
        merged.max_shards = math.gcd(merged.max_shards, absorbed.max_shards)
        merged.usable = merged.usable and absorbed.usable
        merged.places += absorbed.places

    def is_inside(self, value: int, blocks: Collection[int]) -> bool:
        return self.block_of_value[value] >= 0 and self.root(self.block_of_value[value]) in blocks

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
