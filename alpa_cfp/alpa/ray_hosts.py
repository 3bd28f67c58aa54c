"""The hosts of a mesh that Ray manages, as `hosts` measures on them: a supervisor on each, which is a Ray actor.

Takes alpa's mesh; gives what measures on meshes of processes of its own: on the same nodes and devices, and on other
submeshes of the cluster (`ray_slots`), whose devices its supervisors hold. The mesh's own processes hold the user's
arrays, which a program that crashes must not take along. Imports Ray, and alpa, when it is called. Invariant: a
supervisor, and what it holds, ends with `end`, or when the driver's connection to Ray does.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from alpa_cfp.alpa.ray_slots import slots_of
from alpa_cfp.profiling.keys import DeviceDescription, host_layout
from alpa_cfp.profiling.meshes.hosts import DevicesTakenError, HostLostError, HostsWorker
from alpa_cfp.profiling.meshes.losses import Losses
from alpa_cfp.profiling.meshes.machines import Machines
from alpa_cfp.profiling.meshes.pool import Pool
from alpa_cfp.profiling.meshes.slots import Slot
from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.process.phases import Done
from alpa_cfp.profiling.process.protocol import CompileTask, Setup, Task
from alpa_cfp.profiling.process.setups import jax_config
from alpa_cfp.profiling.process.supervisor import Supervisor
from alpa_cfp.spmd.distributed.runtime import Service
from alpa_on_jax.ray_mesh.cluster import hosts as nodes
from alpa_on_jax.ray_mesh.processes import launching

# A supervisor that has said nothing for so long is asked whether it is there, and may take so long to answer.
_SILENT_S = 5.0
_ANSWER_S = 10.0
# How long it may take until a supervisor has the devices that it is to hold, and its process is there.
_HOLD_S = 20.0
_HEALTH = "health"


@dataclass(frozen=True, slots=True)
class Holding:
    """Devices that a supervisor holds.

    Attributes:
        group: The placement group of which.
        bundle: Of which bundle of it.
        resource: What a device is called in the cluster.
        number: How many.
    """

    group: Any
    bundle: int
    resource: str
    number: int


class RayHost:
    """A node of a Ray cluster, with a supervisor from `start` to `end`.

    Args:
        name: As people know it.
        node: Ray's id of the node.
        machine: What its machine is known by.
        options: The limits of a program's time.
        create_s: How long it may take until the supervisor is there and has joined the others.
        holding: What the supervisor holds, if it does.
    """

    def __init__(
        self,
        name: str,
        node: str,
        machine: str,
        options: MeasureOptions,
        create_s: float,
        holding: Holding | None = None,
    ) -> None:
        self.name, self.machine = name, machine
        self._node, self._options, self._create_s, self._holding = node, options, create_s, holding
        self._actor: Any = None

    def start(self, setup: Setup) -> None:
        """See `hosts.Host`.

        Raises:
            DevicesTakenError: somebody else has the devices that it is to hold.
        """
        self.end()
        self._actor = actor = self._made()
        if self._holding is not None:
            try:
                self._get(actor.is_alive.options(concurrency_group=_HEALTH).remote(), _HOLD_S)
            except HostLostError as error:
                raise DevicesTakenError(f"its devices were not to be had: {error}") from error
        self._get(actor.start.remote(setup), self._create_s)

    def do(self, task: CompileTask | Task) -> Iterator[Done]:
        """See `hosts.Host`."""
        import ray

        actor = self._actor
        if actor is None:
            raise HostLostError("its process ended")
        coming = actor.do.options(num_returns="streaming").remote(task)
        while True:
            ready, _ = ray.wait([coming], timeout=_SILENT_S, fetch_local=False)
            if not ready:
                self._get(actor.is_alive.options(concurrency_group=_HEALTH).remote(), _ANSWER_S)
                continue
            try:
                reference = next(coming)
            except StopIteration:
                return
            yield self._get(reference, _ANSWER_S)

    def end(self) -> None:
        """See `hosts.Host`."""
        import ray
        from ray.exceptions import RayError

        actor, self._actor = self._actor, None
        # Ray would connect this process again to whatever it finds.
        if actor is not None and ray.is_initialized():
            with contextlib.suppress(RayError):
                ray.kill(actor)

    def _made(self) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

        needs: dict[str, Any] = {}
        where: Any = NodeAffinitySchedulingStrategy(self._node, soft=False)
        if (holding := self._holding) is not None:
            where = PlacementGroupSchedulingStrategy(holding.group, holding.bundle)
            is_gpu = holding.resource == nodes.GPU
            needs = {"num_gpus": holding.number} if is_gpu else {"resources": {holding.resource: holding.number}}
        remote: Any = ray.remote
        made = remote(num_cpus=0, max_restarts=0, concurrency_groups={_HEALTH: 1}, **needs)(Supervisor)
        return made.options(scheduling_strategy=where).remote(self._options)

    def _get(self, reference: Any, limit_s: float) -> Any:
        import ray
        from ray.exceptions import GetTimeoutError, RayError, RayTaskError

        try:
            return ray.get(reference, timeout=limit_s)
        except GetTimeoutError as error:
            raise HostLostError(f"it has not answered for {limit_s:g} s") from error
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else HostLostError(str(error)) from error
        except RayError as error:
            raise HostLostError(str(error).partition("\n")[0]) from error


def measurer_of(mesh: Any, positions: Sequence[int], options: MeasureOptions) -> tuple[Pool, DeviceDescription]:
    """What measures on a mesh's nodes and on its cluster's other slots, and what its profiles' keys say of the devices.

    Args:
        mesh: Alpa's `DistributedPhysicalDeviceMesh`, with its processes.
        positions: For each device of the logical mesh, in its order, its place among the devices of all hosts.
        options: How to measure.
    """
    from alpa.global_env import global_config

    config: Any = global_config
    return pool_on(*slots_of(mesh, options.slots, config.host_limits.create_s), positions, options)


def pool_on(
    slots: Sequence[Slot], kinds: Sequence[str], positions: Sequence[int], options: MeasureOptions
) -> tuple[Pool, DeviceDescription]:
    """What measures on some slots of one shape; see `measurer_of`.

    Args:
        slots: The slots.
        kinds: Of the devices of each, host by host.
        positions: For each device of the logical mesh, in its order, its place among the devices of all hosts.
        options: How to measure.
    """
    from alpa.global_env import global_config

    config: Any = global_config
    machines, losses = Machines(times_alone=config.backend == "cpu"), Losses()
    workers = [_worker(slot, kinds, positions, options, machines, losses) for slot in slots]
    layout = host_layout([position // slots[0].devices_per_host for position in positions])
    flags = launching.environment(os.environ, config, 0)["XLA_FLAGS"]
    return Pool(workers), DeviceDescription.compiled_here(kinds[0], layout, flags)


@dataclass(frozen=True, slots=True)
class _Submesh:
    """What `launching` asks of alpa's mesh."""

    num_hosts: int
    num_devices_per_host: int
    host_info: tuple[dict[str, str], ...]


def _worker(
    slot: Slot,
    kinds: Sequence[str],
    positions: Sequence[int],
    options: MeasureOptions,
    machines: Machines,
    losses: Losses,
) -> HostsWorker:
    """What measures on one slot; nothing is started yet."""
    from alpa.device_mesh import get_global_cluster
    from alpa.global_env import global_config

    config: Any = global_config
    limits = config.host_limits
    of_slot = [host.node for host in slot.hosts]
    mesh = _Submesh(len(of_slot), slot.devices_per_host, tuple({nodes.ADDRESS: node.ip} for node in of_slot))
    environments = [
        {**launching.environment(os.environ, config, number), **dict(host.environment)}
        for number, host in enumerate(slot.hosts)
    ]
    in_order = tuple(kinds[position] for position in positions)
    # As this thread has them: others, in which meshes are made, may have other ones.
    settings = jax_config()
    wide = bool(settings["jax_enable_x64"])

    def new_mesh() -> tuple[Service, list[Setup]]:
        service = launching.service_of(mesh, config)
        places = [launching.place_of(mesh, number, service.address, config) for number in range(mesh.num_hosts)]
        return service, [
            Setup(place.platform, tuple(positions), in_order, settings, replace(place, wide=wide), environment)
            for place, environment in zip(places, environments, strict=True)
        ]

    cluster: Any = get_global_cluster()
    resource = config.ray_accelerator_name
    hosts = [
        RayHost(
            host.node.name,
            host.node.id,
            host.node.machine,
            options,
            limits.create_s + limits.connect_s,
            None
            if host.bundle is None
            else Holding(cluster.placement_group, host.bundle, resource, slot.devices_per_host),
        )
        for host in slot.hosts
    ]
    return HostsWorker(hosts, new_mesh, machines, losses)
