"""The logical shapes of a mesh."""

import math
from collections.abc import Iterator, Sequence

from alpa_cfp.spmd.shardings.sharding import LogicalMesh


def all_shapes(mesh: LogicalMesh, most_axes: int = 2) -> list[LogicalMesh]:
    """Returns `mesh`, then each other shape of its devices with at most so many axes; the order of devices is the same.

    The smallest axes come first: shapes in another order have the same plans, up to the order of devices. A sharding on
    one of the shapes is a sharding on the others too, along parts of their axes. A mesh with more axes mostly refines
    those with fewer, so that its own plans include theirs.
    """
    found = {nontrivial_sizes(mesh.shape): mesh}
    for axes in range(2, most_axes + 1):
        for shape in _shapes(mesh.num_devices, axes, 1 if axes == 2 else 2):
            found.setdefault(nontrivial_sizes(shape), LogicalMesh(shape))
    return list(found.values())


def _shapes(devices: int, axes: int, least: int) -> Iterator[tuple[int, ...]]:
    """Ascending sizes of so many axes, `least` at least, of which the product is the number of devices."""
    if axes == 1:
        if devices >= least:
            yield (devices,)
        return
    for size in range(least, math.isqrt(devices) + 1):
        if devices % size == 0:
            yield from ((size, *others) for others in _shapes(devices // size, axes - 1, size))


def nontrivial_sizes(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the sizes of the axes without those of size 1; meshes that agree in them are equal."""
    return tuple(size for size in shape if size > 1)


def refines(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether a mesh has more axes than another one, and products of adjacent ones give the other's axes."""
    axes, remaining = nontrivial_sizes(shape), list(nontrivial_sizes(other))
    size = 1
    for axis in axes:
        size *= axis
        if remaining and size == remaining[0]:
            remaining.pop(0)
            size = 1
    return len(axes) > len(nontrivial_sizes(other)) and not remaining and size == 1
