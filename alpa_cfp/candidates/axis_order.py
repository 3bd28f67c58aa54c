"""Strategies that differ by the order of mesh axes of equal size: one of them is evaluated for all.

Takes a mesh and strategies; gives a key that such strategies share, and the permutation of axes from one to another.
On k axes of equal size a block with f factors has up to (f + 1)^k strategies with only C(f + k, k) keys: with four
factors 25 and 15 on two axes, 125 and 35 on three, 625 and 70 on four. Invariant: the axes that split one factor keep
their order, major to minor, so that a permuted sharding is the one that partitioning the permuted strategy would give.
To a block whose program names axes itself no two of them are equal.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy


@dataclass(frozen=True, slots=True)
class AxisPermutation:
    """A permutation of mesh axes, each of which becomes one of its size.

    Attributes:
        images: For each axis the one that takes its place.
    """

    images: tuple[int, ...]

    @classmethod
    def between(cls, mesh: LogicalMesh, first: BlockStrategy, second: BlockStrategy) -> "AxisPermutation":
        """The permutation that makes the second strategy of the first; their keys must be equal."""
        images = list(range(len(mesh.shape)))
        axes, others = (_axes_of(mesh, strategy) for strategy in (first, second))
        for key, own in axes.items():
            for axis, image in zip(own, others[key], strict=True):
                images[axis] = image
        return cls(tuple(images))

    def of_shardings(self, shardings: Sequence[ArraySharding]) -> tuple[ArraySharding, ...]:
        """The shardings with the axes permuted."""
        return tuple(map(self._of_sharding, shardings))

    def _of_sharding(self, sharding: ArraySharding) -> ArraySharding:
        dims = (tuple(replace(axis, index=self.images[axis.index]) for axis in axes) for axes in sharding.dims)
        return ArraySharding(sharding.mesh, tuple(dims))


def order_key(mesh: LogicalMesh, strategy: BlockStrategy, *, names_axes: bool) -> Hashable:
    """Returns a key that is equal for strategies that differ only by the order of equal axes.

    Args:
        mesh: The mesh.
        strategy: The strategy.
        names_axes: Whether the program of the block names axes itself.
    """
    if names_axes:
        return strategy
    axes = _axes_of(mesh, strategy)
    sizes = {key: tuple(mesh.shape[axis] for axis in own) for key, own in axes.items()}
    return strategy.state_sharding, strategy.sums_along, frozenset(sizes.items())


def _axes_of(mesh: LogicalMesh, strategy: BlockStrategy) -> dict[Hashable, list[int]]:
    """The axes of more than one device by the factor that they split, in order; those that split none by their size."""
    found: dict[Hashable, list[int]] = {}
    for axis in mesh.axes:
        factor = strategy.factors[axis.index]
        found.setdefault(("unused", axis.size) if factor is None else factor, []).append(axis.index)
    return found
