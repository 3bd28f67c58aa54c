"""Strategies of a ParallelBlock: the factor that each mesh axis splits, and the sharding of its state (CFP, section 4).

Takes a block and the shape of a logical mesh; gives all strategies, in a fixed order. Invariant: the parts along each
factor are equal, so a strategy never pads.
"""

import enum
import itertools
import math
from dataclasses import dataclass, field

from alpa_cfp import codec
from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.analysis.contractions import Side


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
    choices = [[None, *usable] if size > 1 else [None] for size in mesh_shape]
    strategies = (BlockStrategy(factors) for factors in itertools.product(*choices))
    return tuple(strategy for strategy in strategies if _divides(block, mesh_shape, strategy))


def _divides(block: ParallelBlock, mesh_shape: tuple[int, ...], strategy: BlockStrategy) -> bool:
    return all(
        block.factors[factor].max_shards % math.prod(mesh_shape[axis] for axis in strategy.axes_of(factor)) == 0
        for factor in set(strategy.factors)
        if factor is not None
    )
