"""The rates of a target and what its collectives take, before any program is compiled for it.

Takes a target and a logical mesh; gives `Rates` from the chip's specification and `CommunicationCosts` from the model
of its links. Invariant: they are of the target alone, not of this machine.
"""

import itertools
import math

from alpa_cfp.costs import CommunicationCosts, Rates, crossing_bytes
from alpa_cfp.costs.communication import CollectiveKey, Curve
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.targets.interconnect import KINDS, collective_s
from alpa_cfp.targets.links import interconnect_of
from alpa_cfp.targets.target import Target

# The bytes of a device's operand at which the model is asked: between them time grows in lines.
_SIZES = tuple(4**power for power in range(6, 16))
# Of its peak, what a chip reaches in large products, and in reading and writing memory.
_PRODUCTS_REACH, _MEMORY_REACHES = 0.6, 0.85
# What compilers leave of sums of gradients and of gathered weights that nothing computes beside, before plans tell.
_ASIDE = 0.5


def target_costs(target: Target, mesh: LogicalMesh) -> tuple[Rates, CommunicationCosts]:
    """The rates of one device of a target, and the costs of collectives on a mesh of it.

    Groups of axes that have one size count alike, as the mean of them.

    Args:
        target: The target.
        mesh: A logical mesh of all its devices.
    """
    links, chip = interconnect_of(target), target.chip
    found: dict[CollectiveKey, dict[float, list[float]]] = {}
    for kind, axes, size in itertools.product(KINDS, mesh.runs, _SIZES):
        members = mesh.groups(axes)
        count = math.prod(axis.size for axis in axes)
        pairs = [(group[i - 1], group[i]) for group in members for i in range(count)]
        seconds = collective_s(kind, size, pairs if kind == "collective-permute" else members, links)
        crossing = crossing_bytes(kind, size, count)
        found.setdefault(CollectiveKey(kind, count), {}).setdefault(crossing, []).append(seconds)
    lines = {
        key: Curve.through([(crossing, sum(each) / len(each)) for crossing, each in points.items()])
        for key, points in found.items()
    }
    whole = lines.get(CollectiveKey("all-reduce", mesh.num_devices))
    rates = Rates(
        flops_per_s=_PRODUCTS_REACH * chip.flops_per_s["bf16"],
        bytes_per_s=_MEMORY_REACHES * chip.memory_bytes_per_s,
        latency_s=0.0 if whole is None else whole.latency_s,
        link_bytes_per_s=1e12 if whole is None else whole.link_bytes[-1] / max(whole.seconds[-1], 1e-12),
    )
    return rates, CommunicationCosts(rates, lines, aside_share=_ASIDE)
