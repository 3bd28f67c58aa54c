"""How meshes of hosts begin and end: what they hold meanwhile, what is left afterwards, what cannot be started."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import alpa
import jax
import numpy as np
import pytest
import ray
from alpa.device_mesh import DeviceCluster, get_global_cluster, get_global_physical_mesh, set_global_physical_mesh
from alpa.global_env import global_config
from alpa.util import get_num_available_gpus

from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.cluster.hosts import CPU_DEVICE
from alpa_on_jax.ray_mesh.failures import ending
from alpa_on_jax.ray_mesh.processes import launching
from integration.processes import wait_until, wait_until_ended

ARRAY = np.arange(16, dtype=np.float32).reshape(8, 2)


def doubling() -> Any:
    return alpa.parallelize(lambda x: x * 2, batch_argnums=(), method=alpa.ShardParallel())


@pytest.fixture
def initialised(cluster: Any) -> Iterator[None]:
    """Alpa on the cluster, for a test that ends or breaks what it has."""
    alpa.init(cluster="ray")
    yield
    if alpa.api.is_initialized:
        alpa.shutdown()


def processes(mesh: Any) -> list[int]:
    return ray.get([worker.check_alive.remote() for worker in mesh.workers])


def wait_until_free(number: int) -> None:
    wait_until(lambda: ray.available_resources().get(CPU_DEVICE, 0) == number)


# What a cluster holds.


def test_hosts_of_one_machine_are_told_apart(initialised: None) -> None:
    cluster = get_global_cluster()
    assert cluster.num_hosts == 2
    assert cluster.num_devices == 8
    assert len(set(cluster.host_ips)) == 2
    assert {host["AlpaHostAddress"] for host in cluster.host_info} == {ray.util.get_node_ip_address()}
    virtual = cluster.get_virtual_physical_mesh()
    assert virtual.shape == (2, 4)
    assert len(set(virtual.device_strs)) == 8


def test_as_many_hosts_and_devices_are_held_as_are_asked_for(cluster: Any) -> None:
    wait_until_free(8)
    held = DeviceCluster(num_nodes=1, num_devices_per_node=3)
    try:
        assert (held.num_hosts, held.num_devices) == (1, 3)
        wait_until_free(5)
    finally:
        held.delete_placement_group()
    wait_until_free(8)


def test_devices_that_are_in_use_are_not_waited_for_for_ever(
    initialised: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(global_config, "host_limits", replace(global_config.host_limits, reserve_s=1.0))
    with pytest.raises(errors.ClusterResourcesError, match=r"did not have 2 nodes with .* free within 1 s"):
        DeviceCluster()


def test_more_than_the_cluster_has_is_refused_at_once(cluster: Any) -> None:
    with pytest.raises(errors.ClusterResourcesError, match="the Ray cluster is too small: 3 nodes with 4"):
        DeviceCluster(num_nodes=3)
    with pytest.raises(errors.ClusterResourcesError, match="its nodes offer 4, 4"):
        DeviceCluster(num_devices_per_node=5)


def test_gpus_are_held_where_the_backend_is_gpu(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_config, "backend", "gpu")
    held = DeviceCluster()
    try:
        assert held.host_num_devices == [2, 2]
        assert held.placement_group.bundle_specs == [{"CPU": 1.0, "GPU": 2.0}] * 2
    finally:
        held.delete_placement_group()


# Ending.


def test_a_mesh_that_is_shut_down_leaves_no_process_and_says_that_it_has_ended(initialised: None) -> None:
    function = doubling()
    result, kept = function(ARRAY), function(ARRAY + 1)
    np.asarray(kept)
    mesh = result.device_mesh
    pids = processes(mesh)
    mesh.shutdown()
    mesh.shutdown()
    wait_until_ended(pids)
    for use in (
        lambda: np.asarray(result),
        lambda: result.block_until_ready(),
        lambda: function(ARRAY),
        lambda: mesh.sync_workers(),
        lambda: result.save("/nowhere"),
    ):
        with pytest.raises(errors.MeshEndedError, match="has ended, and its arrays and programs with it"):
            use()
    np.testing.assert_array_equal(np.asarray(kept), (ARRAY + 1) * 2)


def test_a_mesh_that_hangs_is_ended_by_force(initialised: None) -> None:
    mesh: Any = get_global_physical_mesh(create_if_not_exist=True)
    pids = processes(mesh)

    def hang(backend: Any) -> None:
        import time

        time.sleep(600)

    for worker in mesh.workers:
        worker.call.remote(hang)
    assert processes(mesh) == pids, "a host answers although it hangs"
    ending.end(mesh, by_force=True, limits=global_config.host_limits)
    wait_until_ended(pids)


def test_a_shutdown_leaves_ray_as_it_was_and_the_same_function_runs_on_what_alpa_has_next(initialised: None) -> None:
    function = doubling()
    first = function(ARRAY)
    expected = np.asarray(first)
    alpa.shutdown()
    assert ray.is_initialized()
    wait_until_free(8)
    local = function(ARRAY)
    assert isinstance(local, jax.Array)
    np.testing.assert_array_equal(np.asarray(local), expected)
    alpa.shutdown() if alpa.api.is_initialized else alpa.clear_executable_cache()
    set_global_physical_mesh(None)
    alpa.init(cluster="ray")
    second = function(ARRAY)
    assert second.device_mesh is not first.device_mesh
    np.testing.assert_array_equal(np.asarray(second), expected)


# What cannot be started.


def test_a_host_that_cannot_start_is_named_and_the_next_mesh_starts(
    initialised: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(launching, "_PLATFORMS", {"cpu": "no_such_platform"})
        with pytest.raises(errors.HostError, match=r"on host \S+ could not be started: .*no_such_platform"):
            get_global_physical_mesh(create_if_not_exist=True)
    np.testing.assert_array_equal(np.asarray(doubling()(ARRAY)), ARRAY * 2)


def test_a_host_that_does_not_come_in_time_is_named_and_not_left(
    initialised: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = replace(global_config.host_limits, create_s=0.01)
    monkeypatch.setattr(global_config, "host_limits", limits)
    with pytest.raises(errors.HostError, match=r"on host \S+ did not answer within 0.01 s"):
        get_global_physical_mesh(create_if_not_exist=True)
    group = get_global_cluster().placement_group
    wait_until(lambda: get_num_available_gpus(group) == 8)


# A driver of its own.

DRIVER = """
import sys
import alpa, numpy as np
from alpa_on_jax import errors
try:
    alpa.init(cluster="ray")
except errors.NoClusterError as error:
    assert "ray" not in sys.modules
    print(error)
alpa.init(cluster="ray", cluster_address=sys.argv[1], num_devices_per_node=1)
double = alpa.parallelize(lambda x: x * 2, batch_argnums=(), method=alpa.ShardParallel())
print(np.asarray(double(np.ones((4, 2), np.float32))).sum(), double.get_last_executable().physical_mesh.shape)
"""


def test_a_driver_joins_only_what_it_is_told_and_what_it_started_ends_with_it(cluster: Any) -> None:
    wait_until_free(8)
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-c", DRIVER, cluster.address]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "no Ray cluster was named" in done.stdout
    assert "16.0 (2, 1)" in done.stdout
    assert "Traceback" not in done.stderr
    wait_until_free(8)
