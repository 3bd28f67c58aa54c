"""What communication between blocks costs, and what a program costs by counting alone.

Takes sizes and shardings; gives seconds. `Rates` says how fast the mesh is; the numbers that are there by default only
rank programs. Invariant: what already lies as it should costs nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from alpa_on_jax.xla_extension.costs import flop_of_program
from alpa_on_jax.xla_extension.partition import PartitionedProgram
from alpa_on_jax.xla_extension.sharding import ArraySharding, Axis

# How often the bytes of a device's part cross its link, for each kind of collective among n devices.
_CROSSINGS = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: n - 1,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1.0,
}


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a device of the mesh is.

    Attributes:
        flops_per_s: Floating-point operations.
        latency_s: Of one collective.
        link_bytes_per_s: Of its link.
    """

    flops_per_s: float = 2e10
    latency_s: float = 1e-4
    link_bytes_per_s: float = 2e9


def collective_s(kind: str, size_bytes: float, group_size: int, rates: Rates) -> float:
    """One collective, of which each device holds `size_bytes` before."""
    return rates.latency_s + _CROSSINGS[kind](group_size) * size_bytes / rates.link_bytes_per_s


def estimated_s(program: PartitionedProgram, rates: Rates) -> float:
    """One run of a program: its contractions and its communication, one after the other."""
    flops = flop_of_program(program.bytecode)
    communication = sum(collective_s(c.kind, c.size_bytes, c.group_size, rates) for c in program.collectives)
    return flops / rates.flops_per_s + communication


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
