"""The shapes in which the devices of a mesh can be laid out."""

import math
from collections.abc import Sequence

from alpa_cfp.spmd.shardings.sharding import LogicalMesh


def all_shapes(mesh: LogicalMesh) -> list[LogicalMesh]:
    """`mesh` first, then each other way to lay its devices out in one or two axes, the order of devices unchanged.

    Shardings on one of them are shardings on the others too, along parts of their axes.
    """
    count = mesh.num_devices
    others = [(rows, count // rows) for rows in range(1, math.isqrt(count) + 1) if count % rows == 0]
    found = {nontrivial_sizes(mesh.shape): mesh}
    for shape in others:
        found.setdefault(nontrivial_sizes(shape), LogicalMesh(shape))
    return list(found.values())


def nontrivial_sizes(shape: Sequence[int]) -> tuple[int, ...]:
    """The sizes of the axes that devices differ in: meshes that agree in them are the same."""
    return tuple(size for size in shape if size > 1)


def refines(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether a mesh has more axes than another one, of which neighbours together are the axes of the other."""
    axes, waiting = nontrivial_sizes(shape), list(nontrivial_sizes(other))
    size = 1
    for axis in axes:
        size *= axis
        if waiting and size == waiting[0]:
            waiting.pop(0)
            size = 1
    return len(axes) > len(nontrivial_sizes(other)) and not waiting and size == 1
