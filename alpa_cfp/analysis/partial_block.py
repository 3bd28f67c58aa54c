"""What `growth` keeps of a block while it grows: its factors, and what it needs of the values around it.

Plain mutable state of one pass; `blocks` makes the frozen results of it.
"""

from dataclasses import dataclass, field

from alpa_cfp.analysis.contractions import Side

# How a value is partitioned: for some of its dims the factor that splits it.
DimFactors = dict[int, int]


@dataclass(slots=True)
class Factor:
    """A factor of a growing block.

    Attributes:
        block: The block that it was made for.
        side: Its side in the entry contraction, left being that of the operand that is no parameter.
        ways: In how many parts it can split every member at most; all the counts that work divide it.
        alive: Whether no member needs communication for it.
        places: (op, factor of that op's rule) for each contraction of the block that it splits.
    """

    block: int
    side: Side
    max_shards: int
    usable: bool = True
    places: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class PartialBlock:
    """A block while it grows.

    Attributes:
        families: Indices of the families that are in it.
        mask: A bit for each seed that has been merged into it.
        ancestors: The bits of the seeds that what it takes from outside descends from.
        required: The sides of which one factor must stay alive.
        factors: Numbers of its factors.
        shared: For the class of each entry operand: which operand of which family it is.
        needs: How the members need the values from outside to be partitioned; entry operands among them.
        entry_operands: The operands of the entry contractions.
    """

    groups: list[int]
    mask: int
    ancestors: int
    required: frozenset[Side]
    factors: list[int]
    shared: dict[int, tuple[int, int]]
    needs: dict[int, DimFactors] = field(default_factory=dict)
    entry_operands: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Extension:
    """What taking an op into a block would do."""

    tags: list[DimFactors]
    invalidated: set[int]
    max_shards: dict[int, int]
    equal: dict[int, int]
    of_rule: dict[int, int]
    needs: dict[int, DimFactors]
