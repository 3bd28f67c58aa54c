"""Which nodes of a cluster become hosts, and how they are named."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.cluster import hosts
from alpa_on_jax.ray_mesh.cluster.hosts import CPU_DEVICE, GPU


def node(identity: str, *, alive: bool = True, ip: str = "10.0.0.1", **resources: float) -> dict[str, Any]:
    return {"NodeID": identity, "Alive": alive, "NodeManagerAddress": ip, "Resources": {"CPU": 8.0, **resources}}


def test_only_nodes_that_are_alive_and_offer_devices_count() -> None:
    nodes = [
        node("a", **{CPU_DEVICE: 4.0}),
        node("dead", alive=False, **{CPU_DEVICE: 4.0}),
        node("other", GPU=8.0),
        node("b", **{CPU_DEVICE: 2.0}),
    ]
    assert hosts.devices_of_nodes(nodes, CPU_DEVICE) == {"a": 4, "b": 2}
    assert hosts.devices_of_nodes(nodes, GPU) == {"other": 8}


def test_a_part_of_a_device_is_refused() -> None:
    with pytest.raises(errors.ClusterResourcesError, match=r"offers 0.5 of 'GPU'; devices are whole"):
        hosts.devices_of_nodes([node("a", GPU=0.5)], GPU)


def test_by_default_all_devices_of_all_nodes_are_wanted() -> None:
    assert hosts.wanted_devices({"a": 4, "b": 4}, CPU_DEVICE, None, None) == [4, 4]


@given(
    st.dictionaries(st.text(min_size=1), st.integers(1, 16), min_size=1, max_size=6),
    st.none() | st.integers(1, 8),
    st.integers(1, 20),
)
def test_what_is_asked_for_is_refused_exactly_where_too_few_nodes_have_as_much(
    offered: dict[str, int], num_hosts: int | None, num_devices: int
) -> None:
    enough = sum(number >= num_devices for number in offered.values())
    if enough < (num_hosts or 1):
        with pytest.raises(errors.ClusterResourcesError):
            hosts.wanted_devices(offered, CPU_DEVICE, num_hosts, num_devices)
    else:
        wanted = hosts.wanted_devices(offered, CPU_DEVICE, num_hosts, num_devices)
        assert wanted == [num_devices] * (num_hosts or enough)


@pytest.mark.parametrize(
    ("offered", "num_hosts", "num_devices", "words"),
    [
        ({}, None, None, "no node of the Ray cluster offers the resource 'alpa_cpu_device'"),
        ({"a": 4, "b": 2}, None, None, r"different numbers of 'alpa_cpu_device' \(4, 2\)"),
        ({"a": 4, "b": 4}, 3, None, "too small: 3 nodes with 4 of 'alpa_cpu_device' each are wanted.* offer 4, 4"),
        ({"a": 4, "b": 2}, 2, 4, "too small: 2 nodes with 4"),
        ({"a": 4}, 0, None, "num_nodes=0 must be at least 1"),
        ({"a": 4}, None, -1, "num_devices_per_node=-1 must be at least 1"),
    ],
)
def test_what_cannot_be_had_is_refused_with_what_there_is(
    offered: dict[str, int], num_hosts: int | None, num_devices: int | None, words: str
) -> None:
    with pytest.raises(errors.ClusterResourcesError, match=words):
        hosts.wanted_devices(offered, CPU_DEVICE, num_hosts, num_devices)


def test_nodes_that_differ_have_what_is_asked_for_of_each() -> None:
    assert hosts.wanted_devices({"a": 4, "b": 2, "c": 1}, CPU_DEVICE, None, 2) == [2, 2]


def test_a_bundle_has_a_cpu_the_devices_and_what_is_asked_for_besides() -> None:
    assert hosts.bundles(GPU, [8, 8], {"memory": 5}) == [{"CPU": 1, "GPU": 8, "memory": 5}] * 2


def test_bundles_without_devices_are_no_hosts() -> None:
    assert hosts.bundles_with(GPU, [{"CPU": 1}, {"CPU": 1, "GPU": 2}, {"GPU": 0}, {"GPU": 1}]) == [1, 3]


def test_two_nodes_with_one_ip_have_two_names() -> None:
    first, second = (hosts.host_of(node(identity * 32)) for identity in ("a1", "b2"))
    assert first["NodeManagerAddress"] == "10.0.0.1-a1a1a1a1"
    assert second["NodeManagerAddress"] == "10.0.0.1-b2b2b2b2"
    assert first[hosts.ADDRESS] == second[hosts.ADDRESS] == "10.0.0.1"


def test_what_was_busy_is_told_with_what_is_free() -> None:
    error = errors.ClusterResourcesError.busy([{"CPU": 1, GPU: 4}] * 2, 60, {"CPU": 3.0, GPU: 4.0, "memory": 1.0})
    assert "did not have 2 nodes with {'CPU': 1, 'GPU': 4} free within 60 s" in str(error)
    assert "3 of 'CPU', 4 of 'GPU' are free" in str(error)
