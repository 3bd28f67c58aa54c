"""The mutable state of `block_builder`: partial blocks, their factors, and the extensions that are tried on them.

`blocks` makes the frozen results of it.
"""

from dataclasses import dataclass, field

from alpa_cfp.analysis.contractions import Side

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
