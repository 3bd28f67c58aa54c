"""The nodes of a Ray cluster that can be hosts, and how they are held: one bundle of a placement group for each.

Takes what Ray says of its nodes and how many hosts and devices are wanted; gives back the placement group that holds
them, and for each bundle the node that it is on. A host's devices are GPUs, or virtual CPU devices, of which a node
has as many as it offers of the custom resource `CPU_DEVICE`.

Invariant: a host is known by Ray's id of its node. Alpa knows hosts by `NodeManagerAddress`, an IP that two nodes of
one machine share, and asks nothing of it but that it differs: so what it is given under that name is made of the id.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from alpa_on_jax import errors

CPU_DEVICE = "alpa_cpu_device"
GPU = "GPU"
RESOURCE_NAMES = {"gpu": GPU, "cpu": CPU_DEVICE}

# What is added to Ray's description of a node, or changed in it.
KEY, ADDRESS = "NodeManagerAddress", "AlpaHostAddress"


def devices_of_nodes(nodes: Sequence[Mapping[str, Any]], resource: str) -> dict[str, int]:
    """How many devices each node that is alive offers, by its id; without those that offer none.

    Raises:
        errors.ClusterResourcesError: a node offers a fraction of a device.
    """
    found = {}
    for node in nodes:
        number = node["Resources"].get(resource, 0) if node["Alive"] else 0
        if number != int(number):
            raise errors.ClusterResourcesError.fraction(resource, number)
        if number:
            found[node["NodeID"]] = int(number)
    return found


def wanted_devices(
    offered: Mapping[str, int], resource: str, num_hosts: int | None, num_devices_per_host: int | None
) -> list[int]:
    """How many devices to hold on each of how many hosts.

    Args:
        offered: The devices of each node; what nodes there are.
        resource: What a device is called in the cluster.
        num_hosts: All nodes that have enough by default.
        num_devices_per_host: All by default, if each node has as many.

    Raises:
        errors.ClusterResourcesError: the cluster is too small, or its nodes differ.
    """
    for option, number in (("num_nodes", num_hosts), ("num_devices_per_node", num_devices_per_host)):
        if number is not None and number < 1:
            raise errors.ClusterResourcesError.too_few_wanted(option, number)
    if not offered:
        raise errors.ClusterResourcesError.no_devices(resource)
    numbers = sorted(offered.values(), reverse=True)
    if num_devices_per_host is None:
        # As many as the hosts that are asked for all have; which they are is for Ray to choose.
        if len(set(numbers)) > 1:
            raise errors.ClusterResourcesError.unequal(resource, numbers)
        num_devices_per_host = numbers[0]
    enough = sum(number >= num_devices_per_host for number in numbers)
    if enough < (num_hosts or 1):
        raise errors.ClusterResourcesError.too_small(resource, num_hosts or 1, num_devices_per_host, numbers)
    return [num_devices_per_host] * (num_hosts or enough)


def bundles(
    resource: str, num_devices: Sequence[int], more: Mapping[str, float] | None = None
) -> list[dict[str, float]]:
    """The bundles of a placement group: on each host a CPU for the processes, the devices, and `more`."""
    return [{"CPU": 1, resource: number, **(more or {})} for number in num_devices]


def hold(bundles: Sequence[Mapping[str, float]], limit_s: float, name: str | None = None) -> Any:
    """A placement group of these bundles, each on a node of its own; waits until Ray has them free.

    Inside a task or an actor that has a placement group already, which it passes on (Ray Tune), that one is used.

    Raises:
        errors.ClusterResourcesError: they were not free for `limit_s` seconds; nothing is held then.
    """
    import ray
    from ray.util import get_current_placement_group, placement_group, remove_placement_group

    if ray.is_initialized() and (current := get_current_placement_group()) is not None:
        return current
    group = placement_group([dict(bundle) for bundle in bundles], strategy="STRICT_SPREAD", name=name or "")
    ready = False
    try:
        ready = group.wait(limit_s)
    finally:
        if not ready:
            remove_placement_group(group)
    if not ready:
        raise errors.ClusterResourcesError.busy(bundles, limit_s, ray.available_resources())
    return group


def node_of_bundle(group: Any) -> dict[int, str]:
    """The id of the node that each bundle of a placement group is on."""
    from ray.util import placement_group_table

    return {int(index): node for index, node in placement_group_table(group)["bundles_to_node_id"].items()}


def bundles_with(resource: str, specs: Sequence[Mapping[str, float]]) -> list[int]:
    """The numbers of the bundles that hold devices; a placement group of somebody else may have others."""
    return [index for index, spec in enumerate(specs) if spec.get(resource, 0) > 0]


def host_of(node: Mapping[str, Any]) -> dict[str, Any]:
    """Ray's description of a node as alpa gets it: with a name of its own where alpa looks for its IP."""
    return {**node, KEY: host_key(node), ADDRESS: node["NodeManagerAddress"]}


def host_key(node: Mapping[str, Any]) -> str:
    """The name of a host: its IP, for who reads it, and as much of Ray's id as makes it the only one."""
    return f"{node['NodeManagerAddress']}-{node['NodeID'][:8]}"
