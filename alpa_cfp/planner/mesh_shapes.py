"""The logical shapes of a mesh."""

import math
from collections.abc import Sequence

from alpa_cfp.spmd.shardings.sharding import LogicalMesh


def all_shapes(mesh: LogicalMesh) -> list[LogicalMesh]:
    """Returns `mesh`, then each other shape of its devices with one or two axes; the order of devices is the same.

    A sharding on one of them is a sharding on the others too, along parts of their axes. A mesh of three or more axes
    mostly refines those shapes, so that its own plans include theirs.
    """
    count = mesh.num_devices
    others = [(rows, count // rows) for rows in range(1, math.isqrt(count) + 1) if count % rows == 0]
    found = {nontrivial_sizes(mesh.shape): mesh}
    for shape in others:
        found.setdefault(nontrivial_sizes(shape), LogicalMesh(shape))
    return list(found.values())


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
