"""Permutations of mesh axes of equal size: strategies that differ by one are evaluated once.

Takes a mesh and a strategy; gives the strategy that is evaluated for it, its representative, and the way from the
candidate of that one to its own. On k axes of equal size a block with f factors has (f + 1)^k strategies, but only
C(f + k, k) representatives: with four factors 25 and 15 on two axes, 125 and 35 on three, 625 and 70 on four.
Invariant: the axes that split one factor keep their order, major to minor, so that a permuted sharding is the one that
partitioning the permuted strategy would give.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy


@dataclass(frozen=True, slots=True)
class AxisPermutation:
    """A permutation of the axes of a mesh that have one size.

    Attributes:
        images: For each axis the one that takes its place.
    """

    images: tuple[int, ...]

    def of_sharding(self, sharding: ArraySharding) -> ArraySharding:
        """The sharding with the axes permuted."""
        dims = (tuple(replace(axis, index=self.images[axis.index]) for axis in axes) for axes in sharding.dims)
        return ArraySharding(sharding.mesh, tuple(dims))


@dataclass(frozen=True, slots=True)
class EqualAxes:
    """The axes of a mesh by their sizes.

    Attributes:
        groups: The indices of the axes of each size, ascending; axes of size 1 are in none.
    """

    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, mesh: LogicalMesh) -> "EqualAxes":
        """The equal axes of a mesh."""
        by_size: dict[int, list[int]] = {}
        for axis in mesh.axes:
            by_size.setdefault(axis.size, []).append(axis.index)
        return cls(tuple(map(tuple, by_size.values())))

    def representative(self, strategy: BlockStrategy) -> BlockStrategy:
        """The first strategy, in the order of `strategies_of`, that differs only by the order of equal axes."""
        factors = list(strategy.factors)
        for group in self.groups:
            ordered = sorted((factors[axis] for axis in group), key=_order)
            for axis, factor in zip(group, ordered, strict=True):
                factors[axis] = factor
        return replace(strategy, factors=tuple(factors))

    def permutation(self, strategy: BlockStrategy) -> AxisPermutation:
        """The permutation that makes a strategy of its representative."""
        images = list(range(len(strategy.factors)))
        for group in self.groups:
            # Sorting is stable: axes of one factor stay in their order.
            for axis, image in zip(group, sorted(group, key=lambda each: _order(strategy.factors[each])), strict=True):
                images[axis] = image
        return AxisPermutation(tuple(images))


def permuted(shardings: Sequence[ArraySharding], permutation: AxisPermutation) -> tuple[ArraySharding, ...]:
    """The shardings with the axes permuted."""
    return tuple(map(permutation.of_sharding, shardings))


def _order(factor: int | None) -> int:
    return -1 if factor is None else factor
