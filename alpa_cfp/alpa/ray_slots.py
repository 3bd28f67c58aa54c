"""The slots of a Ray cluster for a mesh: its own hosts, and other submeshes of its shape that nobody uses.

Takes alpa's mesh; gives slots. The mesh's devices are held by its own processes, which do nothing meanwhile; those of
the other slots are in bundles of alpa's placement group, and are to be held by who measures there. Ray may know a
moment late that devices are taken, so a slot may turn out not to be there. Imports Ray, and alpa, when it is called.
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alpa_cfp.profiling.meshes.machines import BOOT_ID, this_machine
from alpa_cfp.profiling.meshes.slots import Node, Slot, SlotHost, free_slots
from alpa_on_jax.ray_mesh import hosts
from alpa_on_jax.ray_mesh.calling import call_on_hosts

# How long a node has to say which machine it is on; after that it is not used.
_ANSWER_S = 10.0
_VISIBLE = "CUDA_VISIBLE_DEVICES"
# The machines of the nodes that have said which, and how many bytes of memory they have, by Ray's ids of the nodes: no
# other node ever has the same.
_machine_of_node: dict[str, str] = {}
_memory_of_node: dict[str, int] = {}


def slots_of(mesh: Any, most: int, limit_s: float) -> tuple[list[Slot], tuple[str, ...]]:
    """The slots for a mesh, of which the first one is itself, and the kinds of its devices, host by host.

    Args:
        mesh: Alpa's `DistributedPhysicalDeviceMesh`, with its processes.
        most: How many slots at most.
        limit_s: How long the mesh's processes have to answer.
    """
    told = call_on_hosts(mesh, _look, limit_s=limit_s)
    own = [
        SlotHost(Node(info["NodeID"], info[hosts.KEY], info[hosts.ADDRESS], machine), None, visible)
        for info, (_, machine, visible) in zip(mesh.host_info, told, strict=True)
    ]
    first = Slot(tuple(own), mesh.num_devices_per_host)
    known = {host.node.id: host.node.machine for host in own}
    return [first, *free_submeshes(len(own), first.devices_per_host, most - 1, known)], told[0][0]


def free_submeshes(num_hosts: int, devices_per_host: int, most: int, used: Mapping[str, str]) -> list[Slot]:
    """The slots of this shape that the free devices of alpa's placement group make.

    Args:
        num_hosts, devices_per_host: Their shape.
        most: How many at most.
        used: The machines of the nodes of the mesh, by Ray's ids of these; Ray may not know yet that its processes
            have taken devices there.
    """
    parts, taken = _parts(), dict.fromkeys(used, devices_per_host)
    free = {bundle: min(part.free, part.size - taken.get(part.node, 0)) for bundle, part in parts.items()}
    wanted = {bundle: parts[bundle].node for bundle, number in free.items() if number >= devices_per_host}
    return free_slots(free, _nodes_of(wanted, used), num_hosts, devices_per_host, most, list(used.values()))


def device_kind_of(slot: Slot) -> str:
    """Of which kind the devices of a slot that nobody holds are."""
    from alpa.global_env import global_config

    config: Any = global_config
    if config.backend == "cpu":
        return "cpu"

    def look() -> str:
        import jax

        return jax.local_devices()[0].device_kind

    return _on_first_host(slot, look, num_gpus=1)


def memory_of(slot: Slot) -> int:
    """What each device of a slot that nobody holds may hold, in bytes: of a CPU its part of the machine's memory."""
    from alpa.global_env import global_config

    config: Any = global_config
    if config.backend == "cpu":
        node = slot.hosts[0].node.id

        def look() -> int:
            import os

            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

        if node not in _memory_of_node:
            _memory_of_node[node] = _on_first_host(slot, look)
        return _memory_of_node[node] // slot.devices_per_host

    def look_at_gpu() -> int:
        import jax

        return jax.local_devices()[0].memory_stats()["bytes_limit"]

    return _on_first_host(slot, look_at_gpu, num_gpus=1)


def _on_first_host(slot: Slot, look: Callable[[], Any], **needs: Any) -> Any:
    """What a function gives on a slot's first host. It is sent as it is: the host need not import this project."""
    import ray
    from alpa.device_mesh import get_global_cluster
    from alpa.global_env import global_config
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    cluster: Any = get_global_cluster()
    config: Any = global_config
    remote: Any = ray.remote(num_cpus=0, max_retries=0, max_calls=1, **needs)(look)
    bundle = slot.hosts[0].bundle
    where = PlacementGroupSchedulingStrategy(cluster.placement_group, -1 if bundle is None else bundle)
    return ray.get(remote.options(scheduling_strategy=where).remote(), timeout=config.host_limits.create_s)


def free_devices() -> dict[int, int]:
    """How many devices of each bundle of alpa's placement group no process has, as far as Ray knows."""
    return {bundle: part.free for bundle, part in _parts().items()}


@dataclass(frozen=True, slots=True)
class _Part:
    """A bundle of alpa's placement group: on which node, of how many devices, how many of which are free."""

    node: str
    size: int
    free: int


def _parts() -> dict[int, _Part]:
    import ray
    from alpa.device_mesh import get_global_cluster
    from alpa.global_env import global_config

    cluster: Any = get_global_cluster()
    if cluster is None:
        return {}
    group, resource = cluster.placement_group, global_config.ray_accelerator_name
    available, lies_on = ray.available_resources(), hosts.node_of_bundle(group)
    return {
        bundle: _Part(
            lies_on[bundle],
            int(group.bundle_specs[bundle][resource]),
            int(available.get(f"{resource}_group_{bundle}_{group.id.hex()}", 0)),
        )
        for bundle in hosts.bundles_with(resource, group.bundle_specs)
    }


def _nodes_of(bundles: Mapping[int, str], known: Mapping[str, str]) -> dict[int, Node]:
    """Where bundles lie; without those on nodes that have left, or do not say which machine they are on.

    Args:
        bundles: Ray's id of the node of each, by their numbers in alpa's placement group.
        known: The machines of some nodes, by Ray's ids of these.
    """
    if not bundles:
        return {}
    import ray

    described = {node["NodeID"]: hosts.host_of(node) for node in ray.nodes() if node["Alive"]}
    unknown = set(bundles.values()).intersection(described).difference(known, _machine_of_node)
    _machine_of_node.update(_machines_of(sorted(unknown)))
    machines = {**_machine_of_node, **known}
    return {
        bundle: Node(node, described[node][hosts.KEY], described[node][hosts.ADDRESS], machines[node])
        for bundle, node in bundles.items()
        if node in machines and node in described
    }


def _machines_of(nodes: Sequence[str]) -> dict[str, str]:
    """The machines of nodes, by Ray's ids of these; without those that do not answer."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    boot_id = str(BOOT_ID)

    # Sent as it is: the other process need not import this project for it.
    def look() -> str:
        with open(boot_id) as file:
            return file.read().strip()

    remote: Any = ray.remote(num_cpus=0, max_retries=0)(look)
    asked = {
        remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(): node
        for node in nodes
    }
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_S) if asked else ([], [])
    machines = {}
    for reference in answered:
        # Without Linux, or without the node: it is then not used.
        with contextlib.suppress(RayError, OSError):
            machines[asked[reference]] = ray.get(reference)
    for reference in silent:
        ray.cancel(reference, force=True)
    return machines


def _look(backend: Any) -> tuple[tuple[str, ...], str, tuple[tuple[str, str], ...]]:
    """In a process of the mesh: the kinds of all devices, which machine it is on, and which GPUs of that it has."""
    # Who measures beside it holds no GPUs, so these are named.
    seen = ((_VISIBLE, os.environ[_VISIBLE]),) if backend.platform == "gpu" and _VISIBLE in os.environ else ()
    return tuple(device.device_kind for device in backend.devices()), this_machine(), seen
