"""The communication that reshards an array between two blocks.

Takes sizes and shardings; gives the number of collectives, and the bytes that cross a device's link
(`Rates.communication_s`). Invariant: between equal shardings there is none.
"""

import math
from collections.abc import Sequence

import numpy as np

from alpa_cfp.costs.rates import crossing_bytes
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis


def resharding_amounts(
    shape: Sequence[int], itemsize: int, source: ArraySharding, target: ArraySharding
) -> tuple[int, float]:
    """(collectives, bytes across a device's link) of resharding an array.

    Axes that leave a dim take an all-gather, axes that move to another dim an all-to-all; slicing is free.
    """
    leaving = [axis for old, new in zip(source.dims, target.dims, strict=True) for axis in _without(old, new)]
    if not leaving:
        return 0, 0.0
    arriving = [axis for old, new in zip(source.dims, target.dims, strict=True) for axis in _without(new, old)]
    part_bytes = math.prod(source.local_shape(shape)) * itemsize
    exchanged = [axis for axis in leaving if any(axis.overlaps(other) for other in arriving)]
    gathered = [axis for axis in leaving if axis not in exchanged]
    crossing = 0.0
    if exchanged:
        crossing += crossing_bytes("all-to-all", part_bytes, math.prod(axis.size for axis in exchanged))
    if gathered:
        crossing += crossing_bytes("all-gather", part_bytes, math.prod(axis.size for axis in gathered))
    return bool(exchanged) + bool(gathered), crossing


def resharding_matrix(
    shape: Sequence[int],
    itemsize: int,
    sources: Sequence[ArraySharding],
    targets: Sequence[ArraySharding],
) -> np.ndarray:
    """`resharding_amounts` from each of `sources` to each of `targets`: [sources, targets, 2]."""
    rows, columns = (list(dict.fromkeys(shardings)) for shardings in (sources, targets))
    distinct = np.array([[resharding_amounts(shape, itemsize, a, b) for b in columns] for a in rows])
    return distinct[np.ix_([rows.index(a) for a in sources], [columns.index(b) for b in targets])]


def _without(axes: Sequence[Axis], others: Sequence[Axis]) -> list[Axis]:
    """`axes` without the prefix that both have in common: the axes that have to move."""
    common = 0
    while common < min(len(axes), len(others)) and axes[common] == others[common]:
        common += 1
    return list(axes[common:])
