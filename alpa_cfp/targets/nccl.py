"""What collectives take on NVIDIA GPUs, by the published model of NCCL.

Takes the links of a machine and a collective with its groups of devices; gives the seconds of NCCL's fastest pair of
algorithm and protocol, as NCCL picks it itself. Several groups run at the same time: they share a network card only
where both use it. Invariants: more bytes never take less time, and where a group lies counts, not only its size.

The formulas and tables are those of NCCL 2.30.7 (NVIDIA/nccl, `src/graph/tuning.cc`: base and hardware latencies,
bandwidths per channel, shares of protocols, correction of trees). Of its search for rings and trees (`search.cc`) we
take the outcome: a ring reaches what NCCL counts of a link (`topo.h`, `_REACHED` here), and across hosts no more than
the cards of the devices that take part. The result is that of the tuning log of NCCL 2.27.5 for H100 on 2 to 32 hosts,
which meta-pytorch/autoparallel prints (`cost_models/nccl_cost_model.py`); but no ring is faster than its hosts' links,
so that 8 H100 a host have 371 GB/s, where the log has 384. Three things are not in NCCL's tables:

- Within a host NVLink SHARP moves a buffer and its n-th part each way, so its bandwidth is n/(n+1) of the links'
  (NVIDIA's blog on the third-generation NVSwitch: n+1 transfers in the place of 2n).
- The correction of trees holds for NVLink SHARP, too; NCCL applies it to trees of switches on Blackwell only.
- NCCL has no model of sends and receives. `_PAIRS_REACH` was fitted to two numbers, which do not judge the model
  (`benchmarks/collective_numbers.toml`, the tables for "fitting").
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from alpa_cfp.targets.gpu_links import Generation, GpuInterconnect

Groups = Sequence[Sequence[int]]

_US, _GB_S = 1e-6, 1e9
_PROTOCOLS = ("LL", "LL128", "Simple")
# What NCCL counts of a link's rate: 20, 20.6 and 40.1 of 25, 25 and 50 GB/s of an NVLink, 24 of 31.5 of PCIe 4.0 x16
# (`topo.h`; `topo.cc`: width x speed / 80), 48 of 50 of a card of 400 Gbit/s (`search.cc`, speeds between hosts).
_REACHED: Mapping[str, Mapping[Generation, float]] = {
    "nvlink": {"ampere": 20 / 25, "hopper": 20.6 / 25, "blackwell": 40.1 / 50},
    "pcie": dict.fromkeys(("ampere", "hopper", "blackwell"), 24 / 31.5),
}
_NETWORK_REACHED = 48 / 50
_PAIRS_REACH = 0.83
# Channels within a host (autoparallel), where the machine does not say.
_CHANNELS: Mapping[Generation, int] = {"ampere": 12, "hopper": 16, "blackwell": 16}

# Microseconds for LL, LL128 and Simple.
_BASE_US = {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4)}
_HOP_US = {
    "nvlink": {"ring": (0.6, 1.9, 3.4), "tree": (0.6, 1.25, 4.0)},
    "pcie": {"ring": (1.0, 2.5, 5.7), "tree": (1.0, 1.9, 4.0)},
    "network": {"ring": (2.7, 4.0, 14.0), "tree": (5.0, 8.5, 14.0)},
}
_SWITCH_US, _SWITCH_TREE_HOP_US = 25.0, 20.9
# Handing a message to the network, a third of what it is for Simple.
_POST_US = 1.0
# GB/s on 1, 2, and more hosts. LL's limit across hosts is of Intel's processors.
_LL_GB_S = {"ampere": (87.7, 39.0, 20.4), "hopper": (141.0, 39.0, 20.4), "blackwell": (282.0, 39.0, 20.4)}
# The same a channel.
_RING_LL128_GB_S = {"ampere": (20.0,) * 3, "hopper": (36.7,) * 3, "blackwell": (40.0,) * 3}
_TREE_LL128_GB_S = {"ampere": (20.0,) * 3, "hopper": (36.7, 36.7, 29.0), "blackwell": (55.6, 31.67, 20.0)}
_TREE_GB_S = {"ampere": (24.0, 23.6, 17.8), "hopper": (38.7, 41.4, 36.0), "blackwell": (70.0, 42.8, 24.0)}
_SWITCH_TREE_GB_S = {"ampere": (0.0,) * 3, "hopper": (0.0, 57.7, 45.5), "blackwell": (0.0, 96.0, 80.0)}
_SWITCH_REACHES = {"ampere": 0.0, "hopper": 0.85, "blackwell": 0.74}
# The share of its bandwidth that a tree has, at 64 bytes and each power of two from there; 1 beyond the last.
_TREE_CORRECTION = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1, 1),
    (*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9, 1),
)
# NVLink SHARP across hosts needs so many devices of each (autoparallel's log).
_LEAST_ON_SWITCH = 4


@dataclass(frozen=True, slots=True)
class _Group:
    """Where a group lies.

    Attributes:
        devices: How many.
        hosts: On how many hosts.
        per_host: The least on one of them.
        network_bytes_per_s: What its cards on a host carry, the least of its hosts.
        device_bytes_per_s: What the card of one device carries for it.
    """

    devices: int
    hosts: int
    per_host: int
    network_bytes_per_s: float
    device_bytes_per_s: float


def nccl_s(kind: str, size_bytes: float, groups: Groups, interconnect: GpuInterconnect) -> float:
    """Seconds of a collective on GPUs (see `interconnect.collective_s`), until the last group has finished."""
    # Most groups of a mesh axis lie alike.
    if kind == "collective-permute":
        return max((_pair_s(size_bytes, group, interconnect) for group in _pairs(groups, interconnect)), default=0.0)
    alike = set(_placed(groups, interconnect))
    if kind == "all-to-all":
        return max((_all_to_all_s(size_bytes, group, interconnect) for group in alike), default=0.0)
    return max((_reduced_s(kind, size_bytes, group, interconnect) for group in alike), default=0.0)


def _placed(groups: Groups, interconnect: GpuInterconnect) -> Iterator[_Group]:
    """The groups of more than one device, with what their network cards carry while all of them run."""
    per_host, network = interconnect.devices_per_host, interconnect.network
    nics = [_nics(group, interconnect) for group in groups]
    users = Counter(nic for of_group in nics for nic in of_group)
    busy = Counter(nic for of_group in nics for nic, count in of_group.items() for _ in range(count))
    for group, of_group in zip(groups, nics, strict=True):
        on_hosts = Counter(device // per_host for device in group)
        if len(group) < 2:
            continue
        rate = device_rate = math.inf
        if len(on_hosts) > 1 and network is not None:
            reached, by_host = network.bytes_per_s * _NETWORK_REACHED, defaultdict(float)
            for nic in of_group:
                by_host[nic[0]] += reached / users[nic]
            rate = min(by_host.values())
            device_rate = min(reached / busy[nic] for nic in of_group)
        yield _Group(len(group), len(on_hosts), min(on_hosts.values()), rate, device_rate)


def _nics(group: Sequence[int], interconnect: GpuInterconnect) -> Counter[tuple[int, int]]:
    """The cards that a group uses, by host and number, with how many of its devices use each."""
    per_host, network = interconnect.devices_per_host, interconnect.network
    if network is None or len({device // per_host for device in group}) < 2:
        return Counter()
    return Counter((device // per_host, device % per_host // network.devices_per_nic) for device in group)


def _pairs(groups: Groups, interconnect: GpuInterconnect) -> set[_Group]:
    """Senders and receivers as groups of two; a card sends and receives at the same time."""
    pairs = [(sender, receiver) for sender, receiver in groups if sender != receiver]
    cards = [tuple(_nics(pair, interconnect)) for pair in pairs]
    sending, receiving = (Counter(each[end] for each in cards if each) for end in (0, 1))
    found, network = set[_Group](), interconnect.network
    for each in cards:
        if not each or network is None:
            found.add(_Group(2, 1, 2, math.inf, math.inf))
            continue
        rate = network.bytes_per_s * _NETWORK_REACHED / max(sending[each[0]], receiving[each[1]])
        found.add(_Group(2, 2, 1, rate, rate))
    return found


def _host_bytes_per_s(interconnect: GpuInterconnect) -> float:
    link = interconnect.host_link
    return link.bytes_per_s * _REACHED[link.kind][interconnect.generation]


def _at_hosts(values: tuple[float, ...], hosts: int) -> float:
    """The number for 1, 2 or more hosts."""
    return values[min(hosts, 3) - 1]


def _reduced_s(kind: str, size_bytes: float, group: _Group, interconnect: GpuInterconnect) -> float:
    """Seconds of an all-reduce, all-gather or reduce-scatter: of the fastest way that NCCL has."""
    whole = size_bytes * group.devices if kind == "all-gather" else size_bytes
    ways = [_ring_s(kind, whole, protocol, group, interconnect) for protocol in _usable(interconnect)]
    if kind == "all-reduce":
        ways += [_tree_s(whole, protocol, group, interconnect) for protocol in _usable(interconnect)]
        ways += _switch_s(whole, group, interconnect)
    return min(ways)


def _usable(interconnect: GpuInterconnect) -> tuple[int, ...]:
    """The numbers of the protocols: LL128 needs NVLink, because PCIe may tear what it writes apart."""
    return (0, 1, 2) if interconnect.host_link.kind == "nvlink" else (0, 2)


def _channels(group: _Group, interconnect: GpuInterconnect) -> int:
    """The channels of rings and trees: across hosts one a card, or two where cards are few (`ncclTopoDupChannels`)."""
    if group.hosts == 1:
        return interconnect.host_link.channels or _CHANNELS[interconnect.generation]
    return group.per_host if group.per_host > 4 else 2 * group.per_host


def _hops_us(algorithm: str, protocol: int, group: _Group, interconnect: GpuInterconnect) -> tuple[float, float]:
    """Microseconds of a hop within a host, and of one between hosts."""
    link, network = interconnect.host_link, interconnect.network
    within = _HOP_US[link.kind][algorithm][protocol] + link.latency_s / _US
    # A device that is alone on its host waits for each message as in a tree.
    between = _HOP_US["network"]["tree" if group.per_host == 1 else algorithm][protocol]
    # Simple waits a second time, until what came is in the device's memory.
    times = 2 if _PROTOCOLS[protocol] == "Simple" else 1
    return within, between + times * (network.latency_s / _US if network is not None else 0.0)


def _ring_s(kind: str, whole: float, protocol: int, group: _Group, interconnect: GpuInterconnect) -> float:
    channels, simple = _channels(group, interconnect), _PROTOCOLS[protocol] == "Simple"
    bus = min(_host_bytes_per_s(interconnect), group.network_bytes_per_s)
    if _PROTOCOLS[protocol] == "LL":
        bus = min(bus * 0.5, _at_hosts(_LL_GB_S[interconnect.generation], group.hosts) * _GB_S)
    elif _PROTOCOLS[protocol] == "LL128":
        limit = _at_hosts(_RING_LL128_GB_S[interconnect.generation], group.hosts) * _GB_S
        bus = min(bus * 0.92, channels * limit)
    rounds = 2 if kind == "all-reduce" else 1
    steps, between_hosts = rounds * (group.devices - 1), rounds * (group.hosts - 1)
    within_us, between_us = _hops_us("ring", protocol, group, interconnect)
    if group.hosts > 1:
        within_us = max(within_us, _POST_US * (3 if simple else 1))
    latency = _BASE_US["ring"][protocol] + (steps - between_hosts) * within_us + between_hosts * between_us
    if simple and group.hosts > 1 and kind == "all-reduce" and whole / (channels * group.devices) >= 64:
        latency *= 1.4
    return latency * _US + whole * steps / group.devices / bus


def _tree_s(whole: float, protocol: int, group: _Group, interconnect: GpuInterconnect) -> float:
    generation, channels = interconnect.generation, _channels(group, interconnect)
    # Between two hosts the two trees share the cards so that each carries half of the bytes.
    network = group.network_bytes_per_s * (2 if group.hosts == 2 else 1)
    bus = min(_host_bytes_per_s(interconnect), network) * 0.92
    bus = min(bus, channels * _at_hosts(_TREE_GB_S[generation], group.hosts) * _GB_S)
    if _PROTOCOLS[protocol] == "LL":
        bus = min(bus / 3.8, _at_hosts(_LL_GB_S[generation], group.hosts) * _GB_S)
    elif _PROTOCOLS[protocol] == "LL128":
        limit = _at_hosts(_TREE_LL128_GB_S[generation], group.hosts) * _GB_S
        bus = min(bus * (7 / 9 if group.hosts == 1 else 120 / 128), channels * limit)
    if group.hosts > 1:
        bus *= 0.85
    within_us, between_us = _hops_us("tree", protocol, group, interconnect)
    hops_us = (group.devices // group.hosts - 1) * within_us + _log2(group.hosts) * between_us
    latency = _BASE_US["tree"][protocol] + 2 * hops_us
    return latency * _US + whole / (bus / 2 * _tree_correction(whole, protocol))


def _switch_s(whole: float, group: _Group, interconnect: GpuInterconnect) -> list[float]:
    """Seconds of an all-reduce that switches add up, in a list; an empty one where they cannot."""
    link, network, devices = interconnect.host_link, interconnect.network, group.devices
    reached = _host_bytes_per_s(interconnect) * _SWITCH_REACHES[interconnect.generation]
    if not link.reduces or reached == 0:
        return []
    simple = _PROTOCOLS.index("Simple")
    latency = _SWITCH_US * _US + link.latency_s
    bandwidth = reached * devices / (devices + 1)
    if group.hosts > 1:
        if group.per_host < _LEAST_ON_SWITCH:
            return []
        channels = min(group.per_host, 8)
        limit = channels * _at_hosts(_SWITCH_TREE_GB_S[interconnect.generation], group.hosts) * _GB_S
        within = reached * 2 * (channels - 1) / channels
        across = group.network_bytes_per_s * (2 if group.hosts == 2 else 1)
        bandwidth = min(within, across, limit) * devices / (2 * (devices - 1))
        message = _SWITCH_TREE_HOP_US * _US + 2 * (network.latency_s if network is not None else 0.0)
        latency += 2 * _log2(group.hosts) * message
    return [latency + whole / (bandwidth * _tree_correction(whole, simple))]


def _tree_correction(whole: float, protocol: int) -> float:
    """The share of its bandwidth that a tree reaches, between NCCL's points in a line, so that time never falls."""
    values = _TREE_CORRECTION[protocol]
    position = min(max(math.log2(max(whole, 64.0) / 64), 0.0), len(values) - 1.0)
    before = min(int(position), len(values) - 2)
    return values[before] + (values[before + 1] - values[before]) * (position - before)


def _all_to_all_s(size_bytes: float, group: _Group, interconnect: GpuInterconnect) -> float:
    part, others = size_bytes / group.devices, group.devices - group.per_host
    return _sent_s(part * (group.per_host - 1), part * others, others, group, interconnect)


def _pair_s(size_bytes: float, group: _Group, interconnect: GpuInterconnect) -> float:
    within = size_bytes if group.hosts == 1 else 0.0
    return _sent_s(within, size_bytes - within, group.hosts - 1, group, interconnect)


def _sent_s(within: float, between: float, messages: int, group: _Group, interconnect: GpuInterconnect) -> float:
    """Seconds until a device has sent bytes within its host, and `messages` with others to other hosts.

    By LL or Simple within a host, by Simple between hosts; posting a message takes NCCL's overhead of the network.
    """
    link, ways = interconnect.host_link, list[float]()
    for protocol in (0, 2) if messages == 0 else (2,):
        rate = _host_bytes_per_s(interconnect) * _PAIRS_REACH
        if _PROTOCOLS[protocol] == "LL":
            rate = min(rate * 0.5, _at_hosts(_LL_GB_S[interconnect.generation], 1) * _GB_S)
        within_us, between_us = _hops_us("ring", protocol, group, interconnect)
        hop_us = between_us if messages else within_us
        latency = (_BASE_US["ring"][protocol] + hop_us + messages * _POST_US) * _US
        local = within / rate
        remote = between / min(group.device_bytes_per_s, rate)
        # By PCIe both go over the device's one link.
        ways.append(latency + (max(local, remote) if link.kind == "nvlink" else local + remote))
    return min(ways)


def _log2(hosts: int) -> int:
    return hosts.bit_length() - 1
