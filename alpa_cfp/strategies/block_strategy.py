"""Strategies of a ParallelBlock: which of its factors each mesh axis splits, where its state is kept (CFP, section 4).

Takes a block and the shape of a logical mesh; gives every strategy that there is, in a fixed order. Invariant: along
each factor the parts are equal, so a strategy never pads.
"""

import enum
import itertools
import math
from dataclasses import dataclass, field

from alpa_cfp import codec
from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.analysis.contractions import Side


class StateSharding(enum.StrEnum):
    """Where weights and the optimizer's moments are kept between steps, and updated (ZeRO, arXiv 1910.02054)."""

    REPLICATED = "as used"
    """As the contractions want them: devices that want the same part all keep and update it."""
    ZERO2 = "moments split"
    """Such devices share the moments and the update between them; the weights are gathered after it (ZeRO-2)."""
    ZERO3 = "all split"
    """They share the weights, too, which are gathered where they are used (ZeRO-3, FSDP)."""


@dataclass(frozen=True, slots=True)
class BlockStrategy:
    """A choice for one block.

    Attributes:
        factors: For each mesh axis the index of the block's factor that it splits; None where it splits none, so that
            devices along it do the same.
        state_sharding: How the state is sharded that the block updates.
    """

    factors: tuple[int | None, ...]
    state_sharding: StateSharding = field(default=StateSharding.REPLICATED, metadata=codec.key("kept"))

    def axes_of(self, factor: int) -> tuple[int, ...]:
        """The mesh axes that split a factor, major to minor."""
        return tuple(axis for axis, chosen in enumerate(self.factors) if chosen == factor)


def strategies_of(
    block: ParallelBlock, mesh_shape: tuple[int, ...], *, partial_sums: bool = True
) -> tuple[BlockStrategy, ...]:
    """The strategies of `block` whose state is kept as it is used; the one that splits nothing comes first.

    Args:
        block: The block.
        mesh_shape: The sizes of the mesh's axes. One of a single device splits nothing.
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
