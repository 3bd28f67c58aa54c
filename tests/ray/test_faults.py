"""Hosts that die, hang or leave each other alone: the user hears of it, nothing is left, and a new mesh goes on.

`docs/faults.md` has the times and the messages.
"""

import contextlib
import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import alpa
import jax
import numpy as np
import pytest
import ray
from alpa.device_mesh import get_global_physical_mesh
from alpa.global_env import global_config

from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.cluster.hosts import CPU_DEVICE
from alpa_on_jax.ray_mesh.failures.calling import call_on_hosts
from alpa_on_jax.ray_mesh.processes import launching
from integration.processes import processes_of, wait_until, wait_until_ended
from integration.serial import assert_equal_up_to_rounding, expected_steps

ARRAY = np.arange(64, dtype=np.float32).reshape(16, 4)
WEIGHTS = np.ones((4, 4), np.float32)
MET = (ARRAY @ WEIGHTS).sum(0)


@pytest.fixture
def mesh(initialised: None) -> Any:
    """Its global mesh."""
    return get_global_physical_mesh(create_if_not_exist=True)


def meeting() -> Any:
    """A function of `ARRAY` for which the hosts meet; `MET` is its value."""
    return alpa.parallelize(lambda x: (x @ WEIGHTS).sum(0), batch_argnums=(0,), method=alpa.DataParallel())


def processes(mesh: Any) -> list[int]:
    return ray.get([worker.check_alive.remote() for worker in mesh.workers])


# In training.


def test_a_host_killed_in_a_step_is_named_and_training_goes_on_from_a_checkpoint_on_a_new_mesh(
    mesh: Any, tmp_path: Path
) -> None:
    built = build("mlp")
    step = alpa.parallelize(train_step(built, alpa.value_and_grad), method=alpa.ShardParallel())
    first, second = expected_steps("mlp", None, 2)
    state, metrics, _ = step(jax.tree.map(np.array, built.state), built.batch)
    assert_equal_up_to_rounding(jax.tree.map(np.asarray, metrics), first.metrics)
    alpa.save_checkpoint(str(tmp_path), state, 1)
    mesh.sync_move_workers()
    mesh.sync_workers()

    pids = processes(mesh)
    os.kill(pids[1], signal.SIGSTOP)
    state, metrics, _ = step(state, built.batch)
    time.sleep(0.5)  # the other host is in the step by now
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(errors.MeshLostError, match=rf"host {mesh.node_ips[1]}: its process has ended"):
        np.asarray(metrics["loss"])
    wait_until_ended(pids)
    with pytest.raises(errors.MeshEndedError, match=r"has ended because it was lost \(host"):
        np.asarray(jax.tree.leaves(state)[0])

    # As docs/faults.md says.
    executable = step.get_executable(jax.eval_shape(lambda: built.state), built.batch)
    assert executable.physical_mesh is not mesh
    restored = alpa.restore_checkpoint(str(tmp_path), 1, executable.get_input_placement_specs()[0])
    values = jax.tree.map(np.asarray, step(restored, built.batch))
    assert_equal_up_to_rounding(values, (second.state, second.metrics, second.grads))


def test_a_host_that_is_stopped_in_a_step_is_named_and_not_waited_for_for_ever(
    mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(global_config, "host_limits", replace(global_config.host_limits, ping_s=3.0))
    function = meeting()
    expected = np.asarray(function(ARRAY))
    pids = processes(mesh)
    os.kill(pids[0], signal.SIGSTOP)
    with pytest.raises(errors.MeshLostError, match=rf"host {mesh.node_ips[0]}: its process has not answered for 3 s"):
        np.asarray(function(ARRAY))
    wait_until_ended(pids)
    np.testing.assert_array_equal(np.asarray(function(ARRAY)), expected)


def test_a_host_killed_while_nothing_runs_is_noticed_by_the_next_wait(mesh: Any) -> None:
    pids = processes(mesh)
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(errors.MeshLostError, match="its process has ended"):
        mesh.sync_workers()
    wait_until_ended(pids)
    assert get_global_physical_mesh() is None


def test_a_host_that_waits_for_one_on_which_the_program_failed_is_not_waited_for_for_ever(
    mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(global_config, "host_limits", replace(global_config.host_limits, settle_s=1.0))

    def fail_on_first(backend: Any) -> None:
        if backend.devices()[0].client.process_index() == 0:
            from alpa_cfp.spmd.distributed.host_client import HostExecutable

            def run(self: Any, arguments: Any) -> Any:
                raise RuntimeError("out of everything")

            HostExecutable.run = run

    function = meeting()
    np.asarray(function(ARRAY))
    pids = processes(mesh)
    call_on_hosts(mesh, fail_on_first)
    with pytest.raises(errors.MeshLostError, match=rf"host {mesh.node_ips[1]}: it waits for another host"):
        np.asarray(function(ARRAY))
    wait_until_ended(pids)


def test_a_host_that_is_too_long_at_one_call_is_lost_and_many_short_ones_are_not(
    mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(global_config, "host_limits", replace(global_config.host_limits, call_s=2.0))

    def sleep(backend: Any, seconds: float) -> None:
        import time

        time.sleep(seconds)

    for worker in mesh.workers:
        for _ in range(12):
            worker.call.remote(sleep, 0.5)
    mesh.sync_workers()
    with pytest.raises(errors.MeshLostError, match=r"it has been at one step, compilation or write for \d+ s"):
        call_on_hosts(mesh, sleep, 600)


# In the making of a mesh.


def test_a_host_killed_while_a_mesh_is_made_is_named_and_the_next_mesh_is_made(
    initialised: None, ray_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, pids = launching._start, list[int]()

    def start_and_kill(mesh: Any, host: int, *rest: Any) -> Any:
        worker = start(mesh, host, *rest)
        if host == 0:
            # It waits for the other one, which is started when this one is gone.
            wait_until(lambda: bool(starting()))
            pids.extend(starting())
            os.kill(pids[0], signal.SIGKILL)
        return worker

    def starting() -> list[int]:
        return [pid for pid, command in processes_of(ray_folder).items() if "RayHost.__init__" in command]

    with monkeypatch.context() as patch:
        patch.setattr(launching, "_start", start_and_kill)
        with pytest.raises(errors.HostError, match=r"on host \S+ could not be started"):
            get_global_physical_mesh(create_if_not_exist=True)
    wait_until_ended(pids)
    np.testing.assert_array_equal(np.asarray(meeting()(ARRAY)), MET)


def test_a_mesh_finds_a_port_among_those_that_are_taken_and_says_when_there_is_none(
    initialised: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ip = ray.util.get_node_ip_address()
    with contextlib.ExitStack() as stack:
        first, second = taken_ports(stack, ip)
        monkeypatch.setattr(global_config, "xla_server_port_start", first)
        monkeypatch.setattr(global_config, "xla_server_port_end", second + 1)
        with pytest.raises(errors.NoPortError, match=rf"no port of {ip} from {first} to {second} is free"):
            get_global_physical_mesh(create_if_not_exist=True)
    # The sockets are closed: there are two ports again, of which one is taken.
    with socket.create_server((ip, first)):
        np.testing.assert_array_equal(np.asarray(meeting()(ARRAY)), MET)


def taken_ports(stack: contextlib.ExitStack, ip: str) -> tuple[int, int]:
    """Two ports side by side on which somebody listens."""
    while True:
        first = stack.enter_context(socket.create_server((ip, 0))).getsockname()[1]
        with contextlib.suppress(OSError, OverflowError):
            stack.enter_context(socket.create_server((ip, first + 1)))
            return first, first + 1


def test_a_node_that_leaves_takes_the_mesh_along_and_alpa_goes_on_with_the_nodes_that_are_left(cluster: Any) -> None:
    node = cluster.add_node(num_cpus=4, resources={CPU_DEVICE: 4}, object_store_memory=100 * 2**20)
    wait_until(lambda: ray.cluster_resources().get(CPU_DEVICE) == 12)
    alpa.init(cluster="ray")
    try:
        function = meeting()
        np.testing.assert_array_equal(np.asarray(function(np.tile(ARRAY, (3, 1)))), MET * 3)
        mesh: Any = get_global_physical_mesh()
        assert mesh.num_hosts == 3
        pids = processes(mesh)
        cluster.remove_node(node, allow_graceful=False)

        def train() -> None:
            while True:
                np.asarray(function(np.tile(ARRAY, (3, 1))))

        with pytest.raises(errors.MeshLostError, match=r"its process has ended|its node has left"):
            train()
        wait_until_ended(pids)
        wait_until(lambda: ray.cluster_resources().get(CPU_DEVICE) == 8)
        with pytest.raises(errors.HostError, match=r"the node of host \S+ has left the Ray cluster"):
            function(np.tile(ARRAY, (3, 1)))
    finally:
        alpa.shutdown()
    alpa.init(cluster="ray")
    try:
        np.testing.assert_array_equal(np.asarray(function(ARRAY)), MET)
    finally:
        alpa.shutdown()
