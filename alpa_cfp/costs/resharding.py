"""The communication that reshards an array between two blocks.

Takes sizes and shardings; gives the number of collectives, and the bytes that cross a device's link
(`Rates.communication_s`). Invariant: between equal shardings there is none.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np

from alpa_cfp.costs.communication import CollectiveKey
from alpa_cfp.costs.rates import crossing_bytes
from alpa_cfp.spmd.partition import Collective
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis

_Dims = tuple[tuple[Axis, ...], ...]


def resharding_collectives(
    shape: Sequence[int], itemsize: int, source: ArraySharding, target: ArraySharding
) -> tuple[Collective, ...]:
    """The collectives that reshard an array.

    Axes that leave a dim take an all-gather, axes that move to another dim an all-to-all; slicing is free.
    """
    part_bytes = math.prod(source.local_shape(shape)) * itemsize
    return tuple(Collective(kind, part_bytes, group) for kind, group in _moves(source.dims, target.dims))


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
    part_bytes = np.array([float(math.prod(source.local_shape(shape)) * itemsize) for source in rows])
    patterns = _patterns(tuple(each.dims for each in rows), tuple(each.dims for each in columns))
    number_of = [{sharding: number for number, sharding in enumerate(each)} for each in (rows, columns)]
    index = np.ix_([number_of[0][each] for each in sources], [number_of[1][each] for each in targets])
    found: dict[CollectiveKey, np.ndarray] = {}
    for (kind, group), moves in patterns:
        crossing = crossing_bytes(kind, 1.0, group) * part_bytes
        amounts = np.stack([moves, moves * crossing[:, None]], axis=-1)
        found[CollectiveKey(kind, group, is_aside)] = amounts[index]
    return found


@functools.lru_cache(maxsize=512)
def _patterns(sources: tuple[_Dims, ...], targets: tuple[_Dims, ...]) -> tuple[tuple[tuple[str, int], np.ndarray], ...]:
    """For each kind of collective and group size where it is needed: [sources, targets], 0 or 1.

    Most values of a program have the shardings of others.
    """
    found: dict[tuple[str, int], np.ndarray] = {}
    for i, source in enumerate(sources):
        for j, target in enumerate(targets):
            for move in _moves(source, target):
                found.setdefault(move, np.zeros((len(sources), len(targets))))[i, j] = 1.0
    return tuple(found.items())


@functools.lru_cache(maxsize=2**17)
def _moves(source: _Dims, target: _Dims) -> tuple[tuple[str, int], ...]:
    """The kinds and group sizes of the collectives between two shardings."""
    leaving = [axis for old, new in zip(source, target, strict=True) for axis in _without(old, new)]
    if not leaving:
        return ()
    arriving = [axis for old, new in zip(source, target, strict=True) for axis in _without(new, old)]
    exchanged = [axis for axis in leaving if any(axis.overlaps(other) for other in arriving)]
    gathered = [axis for axis in leaving if axis not in exchanged]
    return tuple(
        (kind, math.prod(axis.size for axis in axes))
        for kind, axes in (("all-to-all", exchanged), ("all-gather", gathered))
        if axes
    )


def _without(axes: Sequence[Axis], others: Sequence[Axis]) -> list[Axis]:
    """`axes` without the prefix that both have in common: the axes that have to move."""
    common = 0
    while common < min(len(axes), len(others)) and axes[common] == others[common]:
        common += 1
    return list(axes[common:])
