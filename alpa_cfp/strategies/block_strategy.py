"""Strategies of a ParallelBlock: the factor that each mesh axis splits, where sums over devices go, and the sharding of
its state (CFP, section 4).

Takes a block and the shape of a logical mesh; gives its strategies, in a fixed order. On a mesh of many axes a strategy
uses adjacent ones as one larger axis, so that it has at most `MOST_RUNS` of them: their number grows with the square of
the number of axes, not exponentially, and each strategy on a coarser mesh of up to `MOST_RUNS` axes is among them.
Invariant: the parts along each factor are equal, so a strategy never pads.
"""

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from alpa_cfp import codec
from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.analysis.contractions import Side

# A product of matrices has three factors, left, right and reduction, and no way to compute it communicates less, up to
# a constant, than splitting each of them once (Irony, Toledo and Tiskin (2004)). Nothing gains from a fourth.
MOST_RUNS = 3
# Sides of factors along which the result of an entry, or the gradient of its input, is a sum over devices.
_SUMMED = (Side.RIGHT, Side.REDUCTION)


class StateSharding(enum.StrEnum):
    """The sharding of weights and optimizer moments between steps (ZeRO, arXiv 1910.02054)."""

    REPLICATED = "as used"
    """As the contractions use them: devices that use the same part all hold and update a copy of it."""
    ZERO2 = "moments split"
    """The moments and the update are split over those devices; weights are gathered after the update (ZeRO-2). Small
    vectors stay whole (`state_sharding`)."""
    ZERO3 = "all split"
    """Weights are split over those devices, too, and gathered at each use (ZeRO-3, FSDP)."""


@dataclass(frozen=True, slots=True)
class BlockStrategy:
    """The strategy of one block.

    Attributes:
        factors: For each mesh axis the index of the block's factor that it splits; None if the block is replicated
            along it.
        state_sharding: The sharding of the state that the block updates.
        sums_along: The index of the factor along which sums over devices are split over these devices, so that each
            keeps a part; None if each has them whole.
    """

    factors: tuple[int | None, ...]
    state_sharding: StateSharding = field(default=StateSharding.REPLICATED, metadata=codec.key("kept"))
    sums_along: int | None = field(default=None, metadata=codec.OMIT_DEFAULT)

    def axes_of(self, factor: int) -> tuple[int, ...]:
        """The mesh axes that split a factor, major to minor."""
        return tuple(axis for axis, chosen in enumerate(self.factors) if chosen == factor)


def strategies_of(
    block: ParallelBlock, mesh_shape: tuple[int, ...], *, partial_sums: bool = True, split_sums: bool = False
) -> tuple[BlockStrategy, ...]:
    """Returns the strategies of `block` with `StateSharding.REPLICATED`, first the one that splits nothing.

    A strategy with whole sums is followed by the one with split sums, if there is one and it is wanted.

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
    whole = (BlockStrategy(factors) for factors, _, _ in begun)
    return tuple(
        strategy
        for each in whole
        if _divides(block, mesh_shape, each)
        for strategy in (each, *(_with_split_sums(block, mesh_shape, each) if split_sums else ()))
    )


def summed_axes(block: ParallelBlock, strategy: BlockStrategy, mesh_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The mesh axes over which results or gradients of the entries are summed, but not gradients of weights."""
    return tuple(
        axis
        for axis, factor in enumerate(strategy.factors)
        if factor is not None and mesh_shape[axis] > 1 and block.factors[factor].side in _SUMMED
    )


def _with_split_sums(
    block: ParallelBlock, mesh_shape: tuple[int, ...], strategy: BlockStrategy
) -> Iterator[BlockStrategy]:
    """The strategy with its sums split along the outermost dim of activations that has enough parts, if it has sums.

    What a loop sums inside is whole when it ends.
    """
    if block.loop is not None:
        return
    parts = math.prod(mesh_shape[axis] for axis in summed_axes(block, strategy, mesh_shape))
    for index, factor in enumerate(block.factors if parts > 1 else ()):
        own = math.prod(mesh_shape[axis] for axis in strategy.axes_of(index))
        if factor.usable and factor.side is Side.LEFT and factor.max_shards % (own * parts) == 0:
            yield replace(strategy, sums_along=index)
            return


def _divides(block: ParallelBlock, mesh_shape: tuple[int, ...], strategy: BlockStrategy) -> bool:
    return all(
        block.factors[factor].max_shards % math.prod(mesh_shape[axis] for axis in strategy.axes_of(factor)) == 0
        for factor in set(strategy.factors)
        if factor is not None
    )
