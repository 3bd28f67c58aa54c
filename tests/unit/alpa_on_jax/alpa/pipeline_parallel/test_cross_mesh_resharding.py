"""Arrays from a mesh to another: alpa's plans of messages, carried out by this project's hosts without processes.

The source has 2 hosts with 2 devices, the destination 2 hosts with 4. Messages lie in a dict instead of a transport.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from alpa.device_mesh import VirtualPhysicalMesh
from alpa.global_env import global_config
from alpa.pipeline_parallel.cross_mesh_resharding import (
    CollectiveGroup,
    CrossMeshCommunicator,
    ReshardingTaskSpec,
    SymbolicBroadcastReshardingTask,
    SymbolicReshardingTask,
)
from alpa.pipeline_parallel.resharding_tensor import VirtualDistributedArray
from alpa.shard_parallel.auto_sharding import hlo_sharding_to_sharding_spec

from alpa_cfp.spmd.module.hlo_module import HloSharding
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_on_jax.jax.interpreters import pxla
from alpa_on_jax.ray_mesh.resharding import tiles

pytestmark = pytest.mark.slow

VALUES = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)
AVAL = jax.core.ShapedArray(VALUES.shape, VALUES.dtype)
BALANCING = ("normal", "no_loadbalance", "loadbalance_size", "loadbalance_order")


@pytest.fixture(autouse=True)
def no_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are not sent to hosts."""
    monkeypatch.setattr(global_config, "debug_with_pipeshard_runtime", True)


def mesh(name: str, num_devices: int) -> Any:
    """Of two hosts, which are known by their names."""
    hosts = [f"{name}{number}" for number in range(2)]
    virtual: Any = VirtualPhysicalMesh([0, 1], [{"NodeManagerAddress": host} for host in hosts], num_devices)
    virtual.workers = virtual.host_ips = hosts
    virtual.mesh_id = name
    return virtual


def specs(num_devices: int) -> Iterator[Any]:
    """Each sharding of the array over 2 hosts."""
    logical = LogicalMesh((2, num_devices))
    for count in range(3):
        for axes in itertools.permutations(logical.axes, count):
            for cut in range(count + 1):
                proto = HloSharding(ArraySharding(logical, (axes[:cut], axes[cut:])).to_proto())
                yield hlo_sharding_to_sharding_spec(proto, AVAL, logical.shape)


class Messages:
    """One host's end of a group whose hosts are all here."""

    def __init__(self, sent: dict[tuple[str, int, int], deque[np.ndarray]], rank: int):
        self._sent, self.rank = sent, rank

    def send(self, tag: str, array: np.ndarray, to: int) -> None:
        self._sent[tag, self.rank, to].append(array)

    def recv(self, tag: str, shape: tuple[int, ...], dtype: Any, sender: int) -> np.ndarray:
        array = self._sent[tag, sender, self.rank].popleft()
        assert (array.shape, array.dtype) == (shape, dtype)
        return array.copy()


def planned(source_spec: Any, wanted: Any, mode: str) -> tuple[Any, Any]:
    """Alpa's plan, and the sharding that its messages give; an all-gather makes the one that is wanted."""
    source, target = mesh("a", 2), mesh("b", 4)
    target_spec = wanted
    if mode == "send_recv":
        target_spec = CrossMeshCommunicator._rewrite_allgather_spec(wanted, 2, VALUES.shape)
    arrays = [
        VirtualDistributedArray(device_mesh=each, aval=AVAL, sharding_spec=spec)
        for each, spec in ((source, source_spec), (target, target_spec))
    ]
    task_spec = ReshardingTaskSpec(*arrays, wanted)
    communicator: Any = object.__new__(CrossMeshCommunicator)
    loads = [dict.fromkeys(each.device_strs, 0) for each in (source, target)]
    communicator._sender_loads, communicator._receiver_loads = loads
    make = getattr(communicator, f"_generate_{mode}_resharding_strategy")
    task_spec.set_resharding_strategy(make(task_spec, source, target))
    group = CollectiveGroup([*source.device_strs, *target.device_strs], source, target)
    task = SymbolicReshardingTask if mode == "send_recv" else SymbolicBroadcastReshardingTask
    return task(task_spec, group, source, target), target_spec


def parts(spec: Any, host: int, num_devices: int) -> list[np.ndarray]:
    """What the devices of a host hold of the array."""
    regions = pxla.spec_to_indices(VALUES.shape, spec)
    return [VALUES[regions[host * num_devices + device]] for device in range(num_devices)]


@pytest.mark.parametrize("balancing", BALANCING)
@pytest.mark.parametrize("mode", ["send_recv", "broadcast"])
def test_from_each_sharding_to_each_the_devices_get_their_parts_and_no_message_is_left_over(
    monkeypatch: pytest.MonkeyPatch, mode: str, balancing: str
) -> None:
    monkeypatch.setattr(global_config, "resharding_loadbalance_mode", balancing)
    for source_spec, wanted in itertools.product(specs(2), specs(4)):
        task, target_spec = planned(source_spec, wanted, mode)
        rank_of = {device: rank for device, (rank, _) in task.collective_group.device_str_to_rank_map.items()}
        sent: dict[tuple[str, int, int], deque[np.ndarray]] = defaultdict(deque)
        got: dict[tuple[int, int], np.ndarray] = {}
        for rank, worker in enumerate(task.collective_group.mesh_workers):
            end: Any = Messages(sent, rank)
            held = parts(source_spec, rank, 2) if rank < 2 else [None] * 4
            if mode == "broadcast":
                work = task.broadcast_tasks[worker].values()
                received = tiles.broadcast_tiles(end, work, held, rank_of.__getitem__)
            elif rank < 2:
                received = {}
                tiles.send_tiles(end, task.sender_tasks[worker], held)
            else:
                received = tiles.receive_tiles(end, task.receiver_tasks[worker], held)
            got.update({(rank - 2, device): part for device, part in received.items()})
        assert not any(sent.values())
        for host in range(2):
            for device, part in enumerate(parts(target_spec, host, 4)):
                np.testing.assert_array_equal(got[host, device], part)


@pytest.mark.parametrize("balancing", BALANCING)
def test_a_device_gets_one_message_from_each_device_that_has_a_part_of_its_tile(
    monkeypatch: pytest.MonkeyPatch, balancing: str
) -> None:
    monkeypatch.setattr(global_config, "resharding_loadbalance_mode", balancing)
    *_, cut_in_four = specs(2)
    task, _ = planned(cut_in_four, next(specs(4)), "send_recv")
    messages = [
        (worker, spec.device_id, spec.tile_spec.rank, spec.tile_spec.gpu_idx)
        for worker, sends in task.sender_tasks.items()
        for spec in sends
    ]
    assert len(messages) == len(set(messages)) == 4 * 8
