"""Which submeshes of a cluster can be measured on at once."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.profiling.meshes.slots import Node, free_slots

FREE = st.dictionaries(st.integers(0, 9), st.integers(0, 8), max_size=8)


def node(number: int, machine: str | None = None) -> Node:
    return Node(f"id {number}", f"name {number}", "10.0.0.1", machine or f"machine {number}")


def bundles(free: dict[int, int], hosts: int, devices: int, nodes: dict[int, Node], *used: str) -> list[list[int]]:
    slots = free_slots(free, nodes, hosts, devices, 10, used)
    return [[host.bundle for host in slot.hosts if host.bundle is not None] for slot in slots]


@given(FREE, st.integers(1, 3), st.integers(1, 4), st.integers(0, 5), st.sets(st.integers(0, 9)))
def test_slots_hold_devices_that_are_free_each_host_on_another_node_that_is_known(
    free: dict[int, int], hosts: int, devices: int, most: int, known: set[int]
) -> None:
    nodes = {number: node(number) for number in known}
    slots = free_slots(free, nodes, hosts, devices, most)
    held = Counter[int]()
    for slot in slots:
        assert len({host.node for host in slot.hosts}) == hosts
        held.update({host.bundle: devices for host in slot.hosts if host.bundle is not None})
    assert all(number <= free[bundle] and bundle in known for bundle, number in held.items())
    assert len(slots) <= most
    # None is left out, where it does not matter which hosts are together.
    if hosts == 1:
        assert len(slots) == min(most, sum(free[bundle] // devices for bundle in free if bundle in known))


def test_a_mesh_that_is_smaller_than_a_host_has_slots_on_the_same_host() -> None:
    assert bundles({0: 2, 1: 4}, 1, 2, {0: node(0), 1: node(1)}) == [[1], [0], [1]]


def test_machines_that_are_not_used_come_first() -> None:
    nodes = {0: node(0, "one"), 1: node(1, "one"), 2: node(2, "two")}
    assert bundles({0: 2, 1: 2, 2: 2}, 1, 2, nodes, "one") == [[2], [0], [1]]
    assert bundles({0: 2, 1: 2, 2: 2}, 2, 2, nodes) == [[0, 2]]
