"""The slots of a Ray cluster for a mesh: its own hosts, and other submeshes of its shape that are free.

Takes alpa's mesh; gives slots. The mesh's devices are held by its own processes, which do nothing meanwhile; those of
the other slots are in bundles of alpa's placement group, and the supervisors there are to hold them. Ray may report
taken devices as free for a moment, so a slot may turn out to be taken.
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from alpa.device_mesh import get_global_cluster
from alpa.global_env import global_config
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from alpa_cfp.profiling.meshes.machines import BOOT_ID, this_machine
from alpa_cfp.profiling.meshes.slots import Node, Slot, SlotHost, free_slots
from alpa_on_jax.ray_mesh.cluster import hosts
from alpa_on_jax.ray_mesh.failures.calling import call_on_hosts

# How long a node has to identify its machine; after that it is not used.
_ANSWER_S = 10.0
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_CONFIG: Any = global_config
# The machines of nodes, and their memory in bytes, by Ray's ids of the nodes, which Ray never uses again.
_machine_of_node: dict[str, str] = {}
_memory_of_node: dict[str, int] = {}


def slots_of(mesh: Any, most: int, limit_s: float) -> tuple[list[Slot], tuple[str, ...]]:
    """The slots for a mesh, the first one on the mesh's own hosts, and the kinds of its devices, host by host.

    Args:
        mesh: Alpa's `DistributedPhysicalDeviceMesh`, with its processes.
        most: The number of slots, at most.
        limit_s: How long the mesh's processes have to answer.
    """
    answers = call_on_hosts(mesh, _describe, limit_s=limit_s)
    own = tuple(
        SlotHost(Node(info["NodeID"], info[hosts.KEY], info[hosts.ADDRESS], machine), None, visible)
        for info, (_, machine, visible) in zip(mesh.host_info, answers, strict=True)
    )
    first = Slot(own, mesh.num_devices_per_host)
    machines = {host.node.id: host.node.machine for host in own}
    return [first, *free_submeshes(len(own), first.devices_per_host, most - 1, machines)], answers[0][0]


def free_submeshes(num_hosts: int, devices_per_host: int, most: int, used: Mapping[str, str]) -> list[Slot]:
    """The slots of a shape that fit on the free devices of alpa's placement group.

    Args:
        num_hosts, devices_per_host: Their shape.
        most: Their number, at most.
        used: The machines of the nodes of the mesh, by Ray's ids of these; Ray may not report yet that its processes
            have taken devices there.
    """
    parts, taken = _parts(), dict.fromkeys(used, devices_per_host)
    free = {bundle: min(part.free, part.size - taken.get(part.node, 0)) for bundle, part in parts.items()}
    wanted = {bundle: parts[bundle].node for bundle, number in free.items() if number >= devices_per_host}
    return free_slots(free, _nodes_of(wanted, used), num_hosts, devices_per_host, most, list(used.values()))


def device_kind_of(slot: Slot) -> str:
    """The kind of the devices of a free slot."""
    if _CONFIG.backend == "cpu":
        return "cpu"

    def device_kind() -> str:
        import jax

        return jax.local_devices()[0].device_kind

    return _on_first_host(slot, device_kind, num_gpus=1)


def memory_of(slot: Slot) -> int:
    """The memory of each device of a free slot, in bytes; of a CPU device its part of the machine's."""
    if _CONFIG.backend == "cpu":
        node = slot.hosts[0].node.id

        def memory_of_machine() -> int:
            import os

            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

        if node not in _memory_of_node:
            _memory_of_node[node] = _on_first_host(slot, memory_of_machine)
        return _memory_of_node[node] // slot.devices_per_host

    def memory_of_gpu() -> int:
        import jax

        return jax.local_devices()[0].memory_stats()["bytes_limit"]

    return _on_first_host(slot, memory_of_gpu, num_gpus=1)


def _on_first_host(slot: Slot, function: Callable[[], Any], **needs: Any) -> Any:
    """The result of a function on a slot's first host. It is sent by value: the host need not import this project."""
    cluster: Any = get_global_cluster()
    remote: Any = ray.remote(num_cpus=0, max_retries=0, max_calls=1, **needs)(function)
    bundle = slot.hosts[0].bundle
    strategy = PlacementGroupSchedulingStrategy(cluster.placement_group, -1 if bundle is None else bundle)
    return ray.get(remote.options(scheduling_strategy=strategy).remote(), timeout=_CONFIG.host_limits.create_s)


@dataclass(frozen=True, slots=True)
class _Part:
    """A bundle of alpa's placement group: its node, the number of its devices, and of those that Ray reports free."""

    node: str
    size: int
    free: int


def _parts() -> dict[int, _Part]:
    cluster: Any = get_global_cluster()
    if cluster is None:
        return {}
    group, resource = cluster.placement_group, _CONFIG.ray_accelerator_name
    available, node_of = ray.available_resources(), hosts.node_of_bundle(group)
    return {
        bundle: _Part(
            node_of[bundle],
            int(group.bundle_specs[bundle][resource]),
            int(available.get(f"{resource}_group_{bundle}_{group.id.hex()}", 0)),
        )
        for bundle in hosts.bundles_with(resource, group.bundle_specs)
    }


def _nodes_of(bundles: Mapping[int, str], known: Mapping[str, str]) -> dict[int, Node]:
    """The node of each bundle; without nodes that have left, or do not identify their machine.

    Args:
        bundles: Ray's id of the node of each, by their numbers in alpa's placement group.
        known: The machines of some nodes, by Ray's ids of these.
    """
    if not bundles:
        return {}
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
    boot_id = str(BOOT_ID)

    # Sent by value: the other process need not import this project.
    def read_boot_id() -> str:
        with open(boot_id) as file:
            return file.read().strip()

    remote: Any = ray.remote(num_cpus=0, max_retries=0)(read_boot_id)
    calls = {
        remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(): node
        for node in nodes
    }
    answered, silent = ray.wait(list(calls), num_returns=len(calls), timeout=_ANSWER_S) if calls else ([], [])
    machines = {}
    for reference in answered:
        # The node is then not used: it has no Linux, or is gone.
        with contextlib.suppress(RayError, OSError):
            machines[calls[reference]] = ray.get(reference)
    for reference in silent:
        ray.cancel(reference, force=True)
    return machines


def _describe(backend: Any) -> tuple[tuple[str, ...], str, tuple[tuple[str, str], ...]]:
    """In a process of the mesh: the kinds of all devices, the machine that it is on, and its visible GPUs."""
    # A supervisor beside it holds no GPUs, so these are named.
    visible = ((_VISIBLE, os.environ[_VISIBLE]),) if backend.platform == "gpu" and _VISIBLE in os.environ else ()
    return tuple(device.device_kind for device in backend.devices()), this_machine(), visible
