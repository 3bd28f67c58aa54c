"""What it costs to bring an array from where one block leaves it to where another one needs it.

Takes sizes and shardings; gives seconds. Invariant: what already lies as it should costs nothing.
"""

import math
from collections.abc import Sequence

import numpy as np

from alpa_cfp.costs.rates import Rates, collective_s
from alpa_on_jax.xla_extension.sharding import ArraySharding, Axis


def resharding_s(
    shape: Sequence[int], itemsize: int, source: ArraySharding, target: ArraySharding, rates: Rates
) -> float:
    """Bringing an array from one sharding to another: gathering it along the axes that leave a dim, or exchanging the
    parts of those that go to another one. Slicing is free.
    """
    leaving = [axis for old, new in zip(source.dims, target.dims, strict=True) for axis in _without(old, new)]
    if not leaving:
        return 0.0
    arriving = [axis for old, new in zip(source.dims, target.dims, strict=True) for axis in _without(new, old)]
    part_bytes = math.prod(source.local_shape(shape)) * itemsize
    exchanged = [axis for axis in leaving if any(axis.overlaps(other) for other in arriving)]
    gathered = [axis for axis in leaving if axis not in exchanged]
    cost = 0.0
    if exchanged:
        cost += collective_s("all-to-all", part_bytes, math.prod(axis.size for axis in exchanged), rates)
    if gathered:
        cost += collective_s("all-gather", part_bytes, math.prod(axis.size for axis in gathered), rates)
    return cost


def resharding_matrix(
    shape: Sequence[int],
    itemsize: int,
    sources: Sequence[ArraySharding],
    targets: Sequence[ArraySharding],
    rates: Rates,
) -> np.ndarray:
    """`resharding_s` from each of `sources` to each of `targets`: [sources, targets]."""
    rows, columns = (list(dict.fromkeys(shardings)) for shardings in (sources, targets))
    distinct = np.array([[resharding_s(shape, itemsize, a, b, rates) for b in columns] for a in rows])
    return distinct[np.ix_([rows.index(a) for a in sources], [columns.index(b) for b in targets])]


def _without(axes: Sequence[Axis], others: Sequence[Axis]) -> list[Axis]:
    """Those of `axes` behind what both have in common at their beginning: they have to move."""
    common = 0
    while common < min(len(axes), len(others)) and axes[common] == others[common]:
        common += 1
    return list(axes[common:])
