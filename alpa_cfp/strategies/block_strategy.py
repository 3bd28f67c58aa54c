"""Strategies of a ParallelBlock: the factor that each mesh axis splits, and the sharding of its state (CFP, section 4).

Takes a block and the shape of a logical mesh; gives its strategies, in a fixed order. On a mesh of many axes a strategy
uses adjacent ones as one larger axis, so that it has at most `MOST_RUNS` of them: their number grows with the square of
the number of axes, not exponentially, and each strategy on a coarser mesh of up to `MOST_RUNS` axes is among them.
Invariant: the parts along each factor are equal, so a strategy never pads.
"""

import enum
import math
from dataclasses import dataclass, field

from alpa_cfp import codec
from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.analysis.contractions import Side

# A product of matrices has three factors, left, right and reduction, and no way to compute it communicates less, up to
# a constant, than splitting each of them once (Irony, Toledo and Tiskin (2004)). Nothing gains from a fourth.
MOST_RUNS = 3


class StateSharding(enum.StrEnum):
    """The sharding of weights and optimizer moments between steps (ZeRO, arXiv 1910.02054)."""

    REPLICATED = "as used"
    """As the contractions use them: devices that use the same part all hold and update a copy of it."""
    ZERO2 = "moments split"
    """The moments and the update are split over those devices; weights are gathered after the update (ZeRO-2)."""
    ZERO3 = "all split"
    """Weights are split over those devices, too, and gathered at each use (ZeRO-3, FSDP)."""


@dataclass(frozen=True, slots=True)
class BlockStrategy:
    """The strategy of one block.

    Attributes:
        factors: For each mesh axis the index of the block's factor that it splits; None if the block is replicated
            along it.
        state_sharding: The sharding of the state that the block updates.
    """

    factors: tuple[int | None, ...]
    state_sharding: StateSharding = field(default=StateSharding.REPLICATED, metadata=codec.key("kept"))

    def axes_of(self, factor: int) -> tuple[int, ...]:
        """The mesh axes that split a factor, major to minor."""
        return tuple(axis for axis, chosen in enumerate(self.factors) if chosen == factor)


def strategies_of(
    block: ParallelBlock, mesh_shape: tuple[int, ...], *, partial_sums: bool = True
) -> tuple[BlockStrategy, ...]:
    """Returns the strategies of `block` with `StateSharding.REPLICATED`, first the one that splits nothing.

    Args:
        block: The block.
        mesh_shape: The sizes of the mesh's axes. Axes of size 1 split nothing.
        partial_sums: Whether reduction factors may be split, too, so that the entry's result is a sum over devices.
    """
    usable = [
        index
        for index, factor in enumerate(block.factors)
        if factor.usable and (partial_sums or factor.side is not Side.REDUCTION)
    ]
    # Each with the factor of the axis before, and how many axes there are if adjacent ones of one factor are one.
    begun: list[tuple[tuple[int | None, ...], int | None, int]] = [((), -1, 0)]
    for size in mesh_shape:
        choices = [None, *usable] if size > 1 else [None]
        begun = [
            ((*factors, choice), last if size == 1 else choice, runs + (size > 1 and choice != last))
            for factors, last, runs in begun
            for choice in choices
            if size == 1 or choice == last or runs < MOST_RUNS
        ]
    strategies = (BlockStrategy(factors) for factors, _, _ in begun)
    return tuple(strategy for strategy in strategies if _divides(block, mesh_shape, strategy))


def _divides(block: ParallelBlock, mesh_shape: tuple[int, ...], strategy: BlockStrategy) -> bool:
    return all(
        block.factors[factor].max_shards % math.prod(mesh_shape[axis] for axis in strategy.axes_of(factor)) == 0
        for factor in set(strategy.factors)
        if factor is not None
    )
