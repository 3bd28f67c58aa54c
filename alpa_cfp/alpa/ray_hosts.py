"""The hosts of a mesh that Ray manages: on each a supervisor (`Supervisor`), which is a Ray actor.

Takes alpa's mesh; gives a pool of meshes of worker processes: one on the same nodes and devices, and others on free
submeshes of the cluster (`ray_slots`), whose devices the supervisors hold. The mesh's own processes hold the user's
arrays, which a program that crashes must not take along. Invariant: a supervisor, and the devices that it holds, are
released by `end`, or when the driver's connection to Ray ends.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from alpa.device_mesh import get_global_cluster
from alpa.global_env import global_config
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from alpa_cfp.alpa.ray_slots import slots_of
from alpa_cfp.profiling.keys import DeviceDescription, host_layout
from alpa_cfp.profiling.meshes.hosts import DevicesTakenError, HostLostError, HostsRunner
from alpa_cfp.profiling.meshes.losses import Losses
from alpa_cfp.profiling.meshes.machines import Machines
from alpa_cfp.profiling.meshes.pool import Pool
from alpa_cfp.profiling.meshes.slots import Slot, SlotHost
from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.process.protocol import Setup, Task, TaskEvent
from alpa_cfp.profiling.process.setups import jax_config
from alpa_cfp.profiling.process.supervisor import Supervisor
from alpa_cfp.spmd.distributed.runtime import Service
from alpa_on_jax.ray_mesh.cluster import hosts as nodes
from alpa_on_jax.ray_mesh.processes import launching

# A supervisor that has been silent for so long is pinged, and may take so long to answer.
_SILENT_S = 5.0
_ANSWER_S = 10.0
# How long it may take until a supervisor has the devices that it is to hold, and its process is there.
_HOLD_S = 20.0
_HEALTH = "health"
_CONFIG: Any = global_config


class RayHost:
    """A host on a node of a Ray cluster, with a supervisor from `start` to `end`; see `meshes.hosts.Host`.

    Args:
        host: Its node, and the bundle whose devices the supervisor holds, if it does.
        devices: The number of its devices.
        options: The time limits of a program.
    """

    def __init__(self, host: SlotHost, devices: int, options: MeasureOptions) -> None:
        self.name, self.machine = host.node.name, host.node.machine
        self._node, self._bundle, self._devices, self._options = host.node.id, host.bundle, devices, options
        self._actor: Any = None

    def start(self, setup: Setup) -> None:
        """See `meshes.hosts.Host`.

        Raises:
            DevicesTakenError: the devices that it is to hold belong to another process.
        """
        self.end()
        self._actor = actor = self._create()
        if self._bundle is not None:
            try:
                self._ping(actor, _HOLD_S)
            except HostLostError as error:
                raise DevicesTakenError(f"its devices were not to be had: {error}") from error
        limits = _CONFIG.host_limits
        _get(actor.start.remote(setup), limits.create_s + limits.connect_s)

    def do(self, task: Task) -> Iterator[TaskEvent]:
        """See `meshes.hosts.Host`."""
        actor = self._actor
        if actor is None:
            raise HostLostError("its process ended")
        events = actor.do.options(num_returns="streaming").remote(task)
        while True:
            ready, _ = ray.wait([events], timeout=_SILENT_S, fetch_local=False)
            if not ready:
                self._ping(actor, _ANSWER_S)
                continue
            try:
                reference = next(events)
            except StopIteration:
                return
            yield _get(reference, _ANSWER_S)

    def end(self) -> None:
        """See `meshes.hosts.Host`."""
        actor, self._actor = self._actor, None
        # Without a connection, Ray would connect this process to any cluster that it finds.
        if actor is not None and ray.is_initialized():
            with contextlib.suppress(RayError):
                ray.kill(actor)

    def _create(self) -> Any:
        needs: dict[str, Any] = {}
        strategy: Any = NodeAffinitySchedulingStrategy(self._node, soft=False)
        if self._bundle is not None:
            cluster: Any = get_global_cluster()
            strategy = PlacementGroupSchedulingStrategy(cluster.placement_group, self._bundle)
            resource = _CONFIG.ray_accelerator_name
            is_gpu = resource == nodes.GPU
            needs = {"num_gpus": self._devices} if is_gpu else {"resources": {resource: self._devices}}
        remote: Any = ray.remote
        actor_class = remote(num_cpus=0, max_restarts=0, concurrency_groups={_HEALTH: 1}, **needs)(Supervisor)
        return actor_class.options(scheduling_strategy=strategy).remote(self._options)

    def _ping(self, actor: Any, limit_s: float) -> None:
        _get(actor.is_alive.options(concurrency_group=_HEALTH).remote(), limit_s)


def _get(reference: Any, limit_s: float) -> Any:
    """The result of a call of an actor.

    Raises:
        HostLostError: the actor is gone, or has not answered in time.
        Exception: the error that the call raised.
    """
    try:
        return ray.get(reference, timeout=limit_s)
    except GetTimeoutError as error:
        raise HostLostError(f"it has not answered for {limit_s:g} s") from error
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else HostLostError(str(error)) from error
    except RayError as error:
        raise HostLostError(str(error).partition("\n")[0]) from error


def measurer_of(mesh: Any, positions: Sequence[int], options: MeasureOptions) -> tuple[Pool, DeviceDescription]:
    """A pool on a mesh's nodes and on its cluster's other slots, and the mesh's devices as profiles' keys have them.

    Args:
        mesh: Alpa's `DistributedPhysicalDeviceMesh`, with its processes.
        positions: For each device of the logical mesh, in its order, its position among the devices of all hosts.
        options: How to measure.
    """
    return pool_on(*slots_of(mesh, options.slots, _CONFIG.host_limits.create_s), positions, options)


def pool_on(
    slots: Sequence[Slot], kinds: Sequence[str], positions: Sequence[int], options: MeasureOptions
) -> tuple[Pool, DeviceDescription]:
    """A pool on slots of one shape; see `measurer_of`.

    Args:
        slots: The slots.
        kinds: The kinds of each slot's devices, host by host.
        positions: For each device of the logical mesh, in its order, its position among the devices of all hosts.
        options: How to measure.
    """
    machines, losses = Machines(times_alone=_CONFIG.backend == "cpu"), Losses()
    runners = [_runner(slot, kinds, positions, options, machines, losses) for slot in slots]
    layout = host_layout([position // slots[0].devices_per_host for position in positions])
    flags = launching.environment(os.environ, _CONFIG, 0)["XLA_FLAGS"]
    return Pool(runners), DeviceDescription.compiled_here(kinds[0], layout, flags)


@dataclass(frozen=True, slots=True)
class _Submesh:
    """The attributes of alpa's mesh that `launching` needs."""

    num_hosts: int
    num_devices_per_host: int
    host_info: tuple[dict[str, str], ...]


def _runner(
    slot: Slot,
    kinds: Sequence[str],
    positions: Sequence[int],
    options: MeasureOptions,
    machines: Machines,
    losses: Losses,
) -> HostsRunner:
    """The runner of one slot; nothing is started yet."""
    addresses = tuple({nodes.ADDRESS: host.node.ip} for host in slot.hosts)
    mesh = _Submesh(len(slot.hosts), slot.devices_per_host, addresses)
    environments = [
        {**launching.environment(os.environ, _CONFIG, number), **dict(host.environment)}
        for number, host in enumerate(slot.hosts)
    ]
    in_order = tuple(kinds[position] for position in positions)
    # Of this thread: the threads in which meshes are made may have other settings.
    settings = jax_config()
    wide = bool(settings["jax_enable_x64"])

    def new_mesh() -> tuple[Service, list[Setup]]:
        service = launching.service_of(mesh, _CONFIG)
        places = [launching.place_of(mesh, number, service.address, _CONFIG) for number in range(mesh.num_hosts)]
        return service, [
            Setup(place.platform, tuple(positions), in_order, settings, replace(place, wide=wide), environment)
            for place, environment in zip(places, environments, strict=True)
        ]

    hosts = [RayHost(host, slot.devices_per_host, options) for host in slot.hosts]
    return HostsRunner(hosts, new_mesh, machines, losses)
