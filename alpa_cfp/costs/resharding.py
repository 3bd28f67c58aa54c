"""The communication that reshards an array between two blocks.

Takes sizes and shardings; gives the number of collectives, and the bytes that cross a device's link
(`Rates.communication_s`). Invariant: between equal shardings there is none.
"""

import math
from collections.abc import Sequence

import numpy as np

from alpa_cfp.costs.communication import CollectiveKey
from alpa_cfp.costs.rates import crossing_bytes
from alpa_cfp.spmd.partition import Collective
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis


def resharding_collectives(
    shape: Sequence[int], itemsize: int, source: ArraySharding, target: ArraySharding
) -> tuple[Collective, ...]:
    """The collectives that reshard an array.

    Axes that leave a dim take an all-gather, axes that move to another dim an all-to-all; slicing is free.
    """
    leaving = [axis for old, new in zip(source.dims, target.dims, strict=True) for axis in _without(old, new)]
    if not leaving:
        return ()
    arriving = [axis for old, new in zip(source.dims, target.dims, strict=True) for axis in _without(new, old)]
    part_bytes = math.prod(source.local_shape(shape)) * itemsize
    exchanged = [axis for axis in leaving if any(axis.overlaps(other) for other in arriving)]
    gathered = [axis for axis in leaving if axis not in exchanged]
    return tuple(
        Collective(kind, part_bytes, math.prod(axis.size for axis in axes))
        for kind, axes in (("all-to-all", exchanged), ("all-gather", gathered))
        if axes
    )


def resharding_matrices(
    shape: Sequence[int],
    itemsize: int,
    sources: Sequence[ArraySharding],
    targets: Sequence[ArraySharding],
    *,
    is_aside: bool = False,
) -> dict[CollectiveKey, np.ndarray]:
    """Of resharding from each of `sources` to each of `targets`, for each kind of collective and group size: the
    collectives, and their bytes across a device's link: [sources, targets, 2].
    """
    rows, columns = (list(dict.fromkeys(shardings)) for shardings in (sources, targets))
    distinct: dict[CollectiveKey, np.ndarray] = {}
    for i, source in enumerate(rows):
        for j, target in enumerate(columns):
            for each in resharding_collectives(shape, itemsize, source, target):
                key = CollectiveKey(each.kind, each.group_size, is_aside)
                crossing = crossing_bytes(each.kind, each.size_bytes, each.group_size)
                distinct.setdefault(key, np.zeros((len(rows), len(columns), 2)))[i, j] += (1, crossing)
    index = np.ix_([rows.index(a) for a in sources], [columns.index(b) for b in targets])
    return {key: matrix[index] for key, matrix in distinct.items()}


def _without(axes: Sequence[Axis], others: Sequence[Axis]) -> list[Axis]:
    """`axes` without the prefix that both have in common: the axes that have to move."""
    common = 0
    while common < min(len(axes), len(others)) and axes[common] == others[common]:
        common += 1
    return list(axes[common:])
