"""What collectives take on TPUs: rings on a torus of links between neighbours.

Takes a torus (its dims, which of them wrap around, links) and a collective with its groups of devices; gives seconds.
Groups of one collective run at the same time: those that lie between each other share links. Invariants: more bytes
never take less time, and an all-reduce takes a reduce-scatter and an all-gather.

The model is that of the book of JAX's developers (jax-ml.github.io/scaling-book, "Sharded Matrices"): over a dim that
wraps around, both directions carry half of the bytes; over one that does not, one direction carries all to the end;
several dims carry their shares at once; a hop takes a microsecond. The torus, its cubes and wrap-around links are those
of "TPU v4: An Optically Reconfigurable Supercomputer" (arXiv 2304.01433). From the same book: links reach 95% of their
rate; and an all-gather of 32 KiB a device over a line of 4 took 8 us, to which `_START_S` was fitted.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from alpa_cfp.errors import OptionError

Groups = Sequence[Sequence[int]]

_REACHED = 0.95
# 8 us without three hops, and without three times 32 KiB at 95% of 45 GB/s.
_START_S = 2.7e-6


@dataclass(frozen=True, slots=True)
class Slices:
    """Several tori of one shape that are joined by the data-centre network.

    Attributes:
        count: How many.
        bytes_per_s: What a device has of its host's network, in one direction.
        latency_s: What a message takes.
    """

    count: int
    bytes_per_s: float
    latency_s: float = 1e-5


@dataclass(frozen=True, slots=True)
class TorusInterconnect:
    """The links of TPUs. Device numbers count the coordinates of `dims` row by row, slice after slice.

    Attributes:
        dims: The sizes of the torus.
        wraps: For each dim whether its ends are joined (v5e and v6e: at 16; v4 and v5p: at multiples of 4).
        link_bytes_per_s: The rate of one link in one direction (4.5e10 for v5e).
        hop_latency_s: What passing on to a neighbour takes.
        slices: The network between several such tori; None for one alone.

    Raises:
        OptionError: a number is not positive, or `wraps` is not for `dims`.
    """

    dims: tuple[int, ...]
    wraps: tuple[bool, ...]
    link_bytes_per_s: float
    hop_latency_s: float = 1e-6
    slices: Slices | None = None

    def __post_init__(self) -> None:
        if not self.dims or min(self.dims) < 1:
            raise OptionError("TorusInterconnect", "dims", self.dims, "it must have positive sizes")
        if len(self.wraps) != len(self.dims):
            rule = f"it must say for each of the {len(self.dims)} dims whether its ends are joined"
            raise OptionError("TorusInterconnect", "wraps", self.wraps, rule)
        if not (math.isfinite(self.link_bytes_per_s) and self.link_bytes_per_s > 0):
            rule = "it must be a positive number of bytes a second"
            raise OptionError("TorusInterconnect", "link_bytes_per_s", self.link_bytes_per_s, rule)
        if not (math.isfinite(self.hop_latency_s) and self.hop_latency_s >= 0):
            rule = "it must be a number of seconds from zero"
            raise OptionError("TorusInterconnect", "hop_latency_s", self.hop_latency_s, rule)
        if self.slices is not None and (self.slices.count < 1 or self.slices.bytes_per_s <= 0):
            raise OptionError("TorusInterconnect", "slices", self.slices, "it must have positive numbers")

    @property
    def num_devices(self) -> int:
        """The number of devices of all slices."""
        return math.prod(self.dims) * (self.slices.count if self.slices is not None else 1)


@dataclass(frozen=True, slots=True)
class _Way:
    """The devices of a group along one dim: so many, each `stride` links from the next, in a ring or in a line."""

    devices: int
    stride: int
    ring: bool

    @property
    def links(self) -> float:
        """How many links carry to a device: it shares them with the groups that lie between its own devices."""
        return (2 if self.ring else 1) / self.stride

    @property
    def hops(self) -> int:
        """Links to the device that is farthest away."""
        return (self.devices // 2 if self.ring else self.devices - 1) * self.stride


@dataclass(frozen=True, slots=True)
class _Group:
    """Where a group lies: its ways within a slice, and in how many slices."""

    ways: tuple[_Way, ...]
    slices: int

    @property
    def in_slice(self) -> int:
        return math.prod(way.devices for way in self.ways)


def torus_s(kind: str, size_bytes: float, groups: Groups, interconnect: TorusInterconnect) -> float:
    """Seconds of a collective on TPUs (see `interconnect.collective_s`), until the last group has finished."""
    if kind == "collective-permute":
        return _permute_s(size_bytes, groups, interconnect)
    seconds = {"all-gather": _gather_s, "all-to-all": _all_to_all_s}.get(kind, _scatter_s)
    longest = 0.0
    for group in {_placed(group, interconnect) for group in groups if len(group) > 1}:
        took = _START_S + seconds(size_bytes, group, interconnect)
        if kind == "all-reduce":
            took += _gather_s(size_bytes / group.in_slice / group.slices, group, interconnect)
        longest = max(longest, took)
    return longest


def _coordinates(device: int, interconnect: TorusInterconnect) -> tuple[int, ...]:
    """The slice of a device, and where it is in it."""
    found = []
    for size in reversed(interconnect.dims):
        device, place = divmod(device, size)
        found.append(place)
    return device, *reversed(found)


def _placed(group: Sequence[int], interconnect: TorusInterconnect) -> _Group:
    places = [_coordinates(device, interconnect) for device in group]
    slices = len({place[0] for place in places})
    values = [sorted({place[1 + dim] for place in places}) for dim in range(len(interconnect.dims))]
    steps = [{after - before for before, after in itertools.pairwise(each)} for each in values]
    if math.prod(map(len, values)) * slices != len(group) or any(len(each) > 1 for each in steps):
        # No box of the torus: its devices pass everything along one line, over links that others need as well.
        devices = len(group) // slices
        return _Group((_Way(devices, max(1, math.prod(interconnect.dims) // devices), False),), slices)
    ways = []
    for size, wraps, each, step in zip(interconnect.dims, interconnect.wraps, values, steps, strict=True):
        if len(each) > 1:
            (stride,) = step
            # A dim of two that wraps around has two links, of which each is as good as a neighbour's.
            ways.append(_Way(len(each), stride, wraps and len(each) * stride == size and size > 2))
    return _Group(tuple(ways), slices)


def _gather_s(size_bytes: float, group: _Group, interconnect: TorusInterconnect) -> float:
    """Seconds until each device has the `size_bytes` of all others."""
    between, slices = 0.0, interconnect.slices
    if group.slices > 1 and slices is not None:
        between = slices.latency_s + (group.slices - 1) * size_bytes / slices.bytes_per_s
    if group.in_slice == 1:
        return between
    coming = (group.in_slice - 1) * size_bytes * group.slices
    rate = sum(way.links for way in group.ways) * interconnect.link_bytes_per_s * _REACHED
    return between + _hops_s(group, interconnect) + coming / rate


def _scatter_s(size_bytes: float, group: _Group, interconnect: TorusInterconnect) -> float:
    """Seconds of a reduce-scatter of `size_bytes` a device: the way back of an all-gather."""
    return _gather_s(size_bytes / group.in_slice / group.slices, group, interconnect)


def _all_to_all_s(size_bytes: float, group: _Group, interconnect: TorusInterconnect) -> float:
    """Seconds of an all-to-all: of the dim whose links carry the most, by the mean distance of its devices."""
    between, slices = 0.0, interconnect.slices
    if group.slices > 1 and slices is not None:
        between = slices.latency_s + size_bytes * (1 - 1 / group.slices) / slices.bytes_per_s
    shares = [size_bytes * way.devices * way.stride / (8 if way.ring else 4) for way in group.ways]
    links = max(shares, default=0.0) / (interconnect.link_bytes_per_s * _REACHED)
    return between + _hops_s(group, interconnect) + links


def _hops_s(group: _Group, interconnect: TorusInterconnect) -> float:
    return sum(way.hops for way in group.ways) * interconnect.hop_latency_s


def _permute_s(size_bytes: float, groups: Groups, interconnect: TorusInterconnect) -> float:
    """Seconds until all pairs have sent: each goes dim after dim by the shorter way, over links that others use too."""
    loads, farthest, leaves = Counter[tuple[int, ...]](), 0, 0
    for source, target in (group for group in groups if len(set(group)) == 2):
        here, there = list(_coordinates(source, interconnect)), _coordinates(target, interconnect)
        if here[0] != there[0]:
            leaves = 1
            continue
        hops = 0
        for dim, size in enumerate(interconnect.dims, 1):
            step = 1 if there[dim] > here[dim] else -1
            if interconnect.wraps[dim - 1] and abs(there[dim] - here[dim]) * 2 > size:
                step = -step
            while here[dim] != there[dim]:
                loads[(dim, step, *here)] += 1
                here[dim] = (here[dim] + step) % size
                hops += 1
        farthest = max(farthest, hops)
    slices, within, between = interconnect.slices, 0.0, 0.0
    if loads:
        carried = max(loads.values()) * size_bytes
        within = farthest * interconnect.hop_latency_s + carried / (interconnect.link_bytes_per_s * _REACHED)
    if leaves and slices is not None:
        between = slices.latency_s + size_bytes / slices.bytes_per_s
    return _START_S + max(within, between) if loads or leaves else 0.0
