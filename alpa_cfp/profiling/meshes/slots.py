"""Slots: the free submeshes of a cluster on which programs can be measured, as plain values.

Takes the number of free devices in each bundle of a cluster's placement group; gives slots of the wanted shape.
Invariants: no two slots hold the same devices; the first slots share as few machines as possible.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a cluster.

    Attributes:
        id: Ray's id of it.
        name: Its name for messages.
        ip: The address at which other hosts reach it.
        machine: The identity of its machine, which may have other nodes, too (`machines.this_machine`).
    """

    id: str
    name: str
    ip: str
    machine: str


@dataclass(frozen=True, slots=True)
class SlotHost:
    """A host of a slot.

    Attributes:
        node: Its node.
        bundle: The bundle of the cluster's placement group whose devices it holds; None: it holds none, and uses those
            that a process of the mesh holds.
        environment: Variables that are added to its processes' environment.
    """

    node: Node
    bundle: int | None
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """A submesh to measure on.

    Attributes:
        hosts: Its hosts, in the order of the mesh.
        devices_per_host: The number of devices of each.
    """

    hosts: tuple[SlotHost, ...]
    devices_per_host: int


def free_slots(
    free: Mapping[int, int],
    nodes: Mapping[int, Node],
    num_hosts: int,
    devices_per_host: int,
    most: int,
    used: Sequence[str] = (),
) -> list[Slot]:
    """The slots that fit on the free devices of a cluster, those on the least used machines first.

    Args:
        free: The number of free devices of each bundle.
        nodes: The node of each bundle; a bundle without one is not used.
        num_hosts, devices_per_host: The shape of a slot; each of its hosts is on another node.
        most: The number of slots, at most.
        used: The machines of existing slots, one for each host.
    """
    remaining, uses = {bundle: free[bundle] for bundle in sorted(free) if bundle in nodes}, Counter(used)
    slots: list[Slot] = []
    while len(slots) < most:
        chosen: list[int] = []
        while len(chosen) < num_hosts:
            taken = {nodes[bundle].id for bundle in chosen}
            fitting = [
                bundle
                for bundle, number in remaining.items()
                if number >= devices_per_host and nodes[bundle].id not in taken
            ]
            if not fitting:
                return slots
            best = min(fitting, key=lambda bundle: (uses[nodes[bundle].machine], -remaining[bundle]))
            uses[nodes[best].machine] += 1
            remaining[best] -= devices_per_host
            chosen.append(best)
        hosts = tuple(SlotHost(nodes[bundle], bundle) for bundle in sorted(chosen))
        slots.append(Slot(hosts, devices_per_host))
    return slots
