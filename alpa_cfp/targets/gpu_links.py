"""The links between GPUs, as the model of NCCL takes them: within a host, and between hosts.

Takes numbers of vendors; gives a `GpuInterconnect`. Invariant: what is no link is refused with the field that is wrong.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from alpa_cfp.errors import OptionError

Generation = Literal["ampere", "hopper", "blackwell"]
LinkKind = Literal["nvlink", "pcie"]


@dataclass(frozen=True, slots=True)
class HostLink:
    """The link of a device to the others of its host.

    Attributes:
        kind: NVLink, by a switch or from each to each, or PCIe.
        bytes_per_s: The vendor's rate of a device in one direction (450e9 for H100).
        latency_s: What a hop takes beyond NCCL's own tables.
        reduces: Whether the switch adds numbers up (NVLink SHARP: from Hopper on).
        channels: How many channels NCCL uses; None for the usual number.
    """

    kind: LinkKind
    bytes_per_s: float
    latency_s: float = 0.0
    reduces: bool = False
    channels: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(LinkKind):
            raise OptionError("HostLink", "kind", self.kind, f"it must be one of {', '.join(get_args(LinkKind))}")
        _check_link("HostLink", self.bytes_per_s, self.latency_s)
        if self.channels is not None and self.channels < 1:
            raise OptionError("HostLink", "channels", self.channels, "a link has one channel at least")


@dataclass(frozen=True, slots=True)
class Network:
    """The links between hosts.

    Attributes:
        bytes_per_s: The vendor's rate of a network card in one direction (50e9 for 400 Gbit/s).
        latency_s: What a message takes beyond NCCL's tables, which are of InfiniBand. AWS's plugin gives 75e-6 for the
            EFA of A100 (aws/aws-ofi-nccl, `platform-aws.c`).
        devices_per_nic: How many neighbouring devices of a host have a card together.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    devices_per_nic: int = 1

    def __post_init__(self) -> None:
        _check_link("Network", self.bytes_per_s, self.latency_s)
        if self.devices_per_nic < 1:
            raise OptionError("Network", "devices_per_nic", self.devices_per_nic, "a card has one device at least")


@dataclass(frozen=True, slots=True)
class GpuInterconnect:
    """The links of hosts with GPUs. Device number d is device d % `devices_per_host` of host d // `devices_per_host`.

    Raises:
        OptionError: a number is not positive, or several hosts have no network.
    """

    generation: Generation
    hosts: int
    devices_per_host: int
    host_link: HostLink
    network: Network | None = None

    def __post_init__(self) -> None:
        if self.generation not in get_args(Generation):
            rule = f"it must be one of {', '.join(get_args(Generation))}, for which NCCL has tables"
            raise OptionError("GpuInterconnect", "generation", self.generation, rule)
        for field in ("hosts", "devices_per_host"):
            if getattr(self, field) < 1:
                raise OptionError("GpuInterconnect", field, getattr(self, field), "it must be positive")
        if self.hosts > 1 and self.network is None:
            raise OptionError("GpuInterconnect", "network", None, f"{self.hosts} hosts need one")

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return self.hosts * self.devices_per_host


def _check_link(option: str, bytes_per_s: float, latency_s: float) -> None:
    if not (math.isfinite(bytes_per_s) and bytes_per_s > 0):
        raise OptionError(option, "bytes_per_s", bytes_per_s, "it must be a positive number of bytes a second")
    if not (math.isfinite(latency_s) and latency_s >= 0):
        raise OptionError(option, "latency_s", latency_s, "it must be a number of seconds from zero")
