"""The mesh of the processes of a `jax.distributed` program, to measure on.

Takes the joined processes and the devices of their mesh; gives, in the first process, a measurer with the description
of the devices, and in each process its host. On CPUs each process has a worker process, and the workers are a group of
their own, with as many devices, in the places of the processes' own: a program that crashes or hangs costs that program
only, and the processes' own devices do nothing meanwhile. The memory of other devices belongs to the processes, which
measure there themselves.
"""

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from alpa_cfp.profiling.keys import DeviceDescription
from alpa_cfp.profiling.meshes.hosts import Host, HostsRunner
from alpa_cfp.profiling.meshes.losses import Losses
from alpa_cfp.profiling.meshes.machines import Machines
from alpa_cfp.profiling.meshes.pool import Pool
from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.process.protocol import Setup
from alpa_cfp.profiling.process.setups import jax_config
from alpa_cfp.profiling.processes.hosts import InProcessHost, RemoteHost, WorkerHost, name_of
from alpa_cfp.profiling.processes.joining import Joined
from alpa_cfp.profiling.processes.peers import PeerLostError
from alpa_cfp.profiling.processes.serving import MakeHost
from alpa_cfp.spmd.distributed.host_place import HostPlace
from alpa_cfp.spmd.distributed.runtime import Service, start_service

# Of the service of the workers; not among those that systems give to outgoing connections.
_PORTS = range(20000, 32000)
# As for the hosts of a Ray cluster (`failures.limits` there).
_CONNECT_S, _HEARTBEAT_S, _SHUTDOWN_S = 60.0, 30.0, 10.0
_PLATFORMS = {"gpu": "cuda"}
# A worker has as many devices as its place says.
_DEVICES_FLAG = re.compile(r"--xla_force_host_platform_device_count=\S*")


@dataclass(frozen=True, slots=True)
class _OwnDevices:
    """Stands for a service where nothing is started: the processes have found each other before."""

    def shutdown(self) -> None:
        """Does nothing."""


def own_host(joined: Joined, devices: Sequence[Any], options: MeasureOptions) -> Host:
    """Returns this process as a host.

    Args:
        joined: The processes.
        devices: The devices of the mesh, in its order.
        options: How to measure.
    """
    name, machine = name_of(joined.own.process), joined.own.machine
    if is_isolated(devices, options):
        return WorkerHost(name, machine, options)
    return InProcessHost(name, machine, options, devices)


def is_isolated(devices: Sequence[Any], options: MeasureOptions) -> bool:
    """Whether programs run in worker processes."""
    return devices[0].platform == "cpu" if options.isolated is None else options.isolated


def measurer_of(joined: Joined, devices: Sequence[Any], options: MeasureOptions) -> tuple[Pool, DeviceDescription]:
    """Returns a measurer on the mesh, in the first process, and the mesh's devices as profiles' keys have them.

    Args:
        joined: The processes.
        devices: The devices of the mesh, in its order.
        options: How to measure.
    """
    for peer in joined.peers:
        with contextlib.suppress(PeerLostError):  # it is an error when the mesh is made
            peer.send(0, MakeHost(options))
    hosts = [own_host(joined, devices, options)]
    hosts += [RemoteHost(member.machine, peer) for member, peer in joined.others]
    setups = _setups(joined, devices)

    def new_mesh() -> tuple[Service | _OwnDevices, list[Setup]]:
        if not is_isolated(devices, options):
            return _OwnDevices(), setups
        service = start_service(joined.own.ip, _PORTS, len(setups), _HEARTBEAT_S, _SHUTDOWN_S)
        return service, [_with_service(setup, service.address) for setup in setups]

    # Processes may share a machine, where nothing is compiled while something is timed.
    machines = Machines(times_alone=devices[0].platform == "cpu")
    return Pool([HostsRunner(hosts, new_mesh, machines, Losses())]), DeviceDescription.of(devices)


def _setups(joined: Joined, devices: Sequence[Any]) -> list[Setup]:
    """The setup of each process' worker, without the address of their service."""
    members = [joined.own, *(member for member, _ in joined.others)]
    numbers = [sorted(device.id for device in devices if device.process_index == each.process) for each in members]
    in_order = [number for own in numbers for number in own]
    positions = tuple(in_order.index(device.id) for device in devices)
    kinds = tuple(device.device_kind for device in devices)
    platform: str = devices[0].platform
    settings = jax_config()
    environment = {"XLA_FLAGS": " ".join(_DEVICES_FLAG.sub("", os.environ.get("XLA_FLAGS", "")).split())}
    return [
        Setup(platform, positions, kinds, settings, place, environment)
        for place in (
            HostPlace(
                "", len(members), host, member.ip, _PLATFORMS.get(platform, platform), len(numbers[host]),
                bool(settings["jax_enable_x64"]), _CONNECT_S, _HEARTBEAT_S, _SHUTDOWN_S,
            )
            for host, member in enumerate(members)
        )
    ]  # fmt: skip


def _with_service(setup: Setup, address: str) -> Setup:
    assert setup.place is not None
    return replace(setup, place=replace(setup.place, service=address))
