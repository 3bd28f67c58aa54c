"""What a collective takes on the links of a target, by published models.

Takes a kind of collective, the bytes of a device's operand, the groups of devices and the links, which are data; gives
seconds. GPUs are modelled by what NCCL does (`nccl.py`), TPUs by rings on a torus (`torus.py`). Invariants: more bytes
never take less time, and rates depend on where a group lies: within a host, across hosts, along which dims.
"""

import math

from alpa_cfp.errors import OptionError
from alpa_cfp.spmd.module import partitioned
from alpa_cfp.targets.gpu_links import GpuInterconnect, HostLink, Network
from alpa_cfp.targets.nccl import Groups, nccl_s
from alpa_cfp.targets.torus import Slices, TorusInterconnect, torus_s

__all__ = [
    "KINDS",
    "GpuInterconnect",
    "HostLink",
    "Interconnect",
    "Network",
    "Slices",
    "TorusInterconnect",
    "collective_s",
]

Interconnect = GpuInterconnect | TorusInterconnect
# XLA's names.
KINDS = tuple(partitioned.KINDS.values())


def collective_s(kind: str, size_bytes: float, groups: Groups, interconnect: Interconnect) -> float:
    """Seconds of one collective by itself, from its start on all devices until the last of them has finished.

    Args:
        kind: One of `KINDS`.
        size_bytes: The bytes of one device's operand: of an all-gather its part, of a reduce-scatter and an all-to-all
            all that it has (as `costs.rates.crossing_bytes` counts them).
        groups: The devices of each group, all of which run at the same time. For a collective-permute a group is a
            sender and its receiver; a pair of one device costs nothing.
        interconnect: The links. Device numbers go row by row over hosts and devices of a host, or over the coordinates
            of a torus.

    Raises:
        OptionError: there is no such kind, bytes are negative, or a group has a device twice or one that is not there.
    """
    if kind not in KINDS:
        raise OptionError("collective_s", "kind", kind, f"it must be one of {', '.join(KINDS)}")
    if not (math.isfinite(size_bytes) and size_bytes >= 0):
        raise OptionError("collective_s", "size_bytes", size_bytes, "it must be a number of bytes from zero")
    _check_groups(kind, groups, interconnect.num_devices)
    if isinstance(interconnect, GpuInterconnect):
        return nccl_s(kind, size_bytes, groups, interconnect)
    return torus_s(kind, size_bytes, groups, interconnect)


def _check_groups(kind: str, groups: Groups, num_devices: int) -> None:
    pairs = kind == "collective-permute"
    for group in groups:
        if any(not 0 <= device < num_devices for device in group):
            raise OptionError("collective_s", "groups", group, f"devices are numbered from 0 to {num_devices - 1}")
        if pairs and len(group) != 2:
            raise OptionError("collective_s", "groups", group, "a collective-permute has pairs: a sender, a receiver")
        if not pairs and len(set(group)) != len(group):
            raise OptionError("collective_s", "groups", group, "a device is in it twice")
