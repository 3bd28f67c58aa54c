"""Where programs may be measured: the slots, each a submesh of the cluster of the wanted shape, as plain values.

Takes how many devices are free in each part of a cluster that is held; gives slots. Invariants: what a slot holds, no
other one does; the first slots share as few machines as can be.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a cluster.

    Attributes:
        id: Ray's id of it.
        name: As people know it.
        ip: The address at which other hosts reach it.
        machine: What its machine is known by; other nodes may be on the same (`machines.this_machine`).
    """

    id: str
    name: str
    ip: str
    machine: str


@dataclass(frozen=True, slots=True)
class SlotHost:
    """A host of a slot.

    Attributes:
        node: Where it is.
        bundle: The number of the bundle of the cluster's placement group of which it holds devices; None: it holds
            none, and uses those that a process of the mesh holds.
        environment: What its processes' environment has beside that of all hosts.
    """

    node: Node
    bundle: int | None
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """A submesh to measure on.

    Attributes:
        hosts: Its hosts, in the order of the mesh.
        devices_per_host: How many devices each has.
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
    """The slots that the free devices of a cluster make, those on the least used machines first.

    Args:
        free: How many devices of each bundle nobody has.
        nodes: Where the bundles lie; those that are not there are not used.
        num_hosts, devices_per_host: The shape of a slot; each of its hosts is on another node.
        most: How many slots at most.
        used: The machines of the slots that there are already, as often as they are used.
    """
    left, uses = {bundle: free[bundle] for bundle in sorted(free) if bundle in nodes}, Counter(used)
    slots: list[Slot] = []
    while len(slots) < most:
        chosen: list[int] = []
        while len(chosen) < num_hosts:
            there = {nodes[bundle].id for bundle in chosen}
            fitting = [
                bundle
                for bundle, number in left.items()
                if number >= devices_per_host and nodes[bundle].id not in there
            ]
            if not fitting:
                return slots
            best = min(fitting, key=lambda bundle: (uses[nodes[bundle].machine], -left[bundle]))
            uses[nodes[best].machine] += 1
            left[best] -= devices_per_host
            chosen.append(best)
        hosts = tuple(SlotHost(nodes[bundle], bundle) for bundle in sorted(chosen))
        slots.append(Slot(hosts, devices_per_host))
    return slots
