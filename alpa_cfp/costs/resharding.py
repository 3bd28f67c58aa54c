"""What it takes to bring an array from where one block leaves it to where another one needs it.

Takes sizes and shardings; gives how many collectives that are, and how many bytes cross a device's link
(`Rates.communication_s`). Invariant: what already lies as it should takes none.
"""

import math
from collections.abc import Sequence

import numpy as np

from alpa_cfp.costs.rates import crossing_bytes
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis


def resharding_amounts(
    shape: Sequence[int], itemsize: int, source: ArraySharding, target: ArraySharding
) -> tuple[int, float]:
    """(collectives, bytes across a device's link) of bringing an array from one sharding to another: gathering it along
    the axes that leave a dim, or exchanging the parts of those that go to another one. Slicing is free.
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
    """Those of `axes` behind what both have in common at their beginning: they have to move."""
    common = 0
    while common < min(len(axes), len(others)) and axes[common] == others[common]:
        common += 1
    return list(axes[common:])
