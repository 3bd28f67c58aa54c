"""What one host of a mesh does: alpa's `MeshHostWorker`, on stock JAX.

Takes the calls of the driver in their order: arrays in and out, programs, runs. Most of alpa's methods are used as they
are; here are those that touch devices. What a call raises that nobody waits for is kept (`host_errors`); what goes to
other meshes is in `resharding_worker`.

Knows nothing of Ray: `ray_host` makes a process of it, `in_process` a thread. Invariant: `ALWAYS` may be called from
another thread at any time; all else is called in one thread, in the order in which it was asked for.
"""

import contextlib
import inspect
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from alpa.device_mesh import MeshHostWorker

from alpa_cfp.spmd.distributed.host_array import block_until_ready
from alpa_cfp.spmd.distributed.host_client import HostClient
from alpa_cfp.spmd.distributed.host_place import HostPlace
from alpa_on_jax.arrays.checkpoint_files import load_sharded_array
from alpa_on_jax.arrays.placement import block_until_all_ready, device_memory
from alpa_on_jax.ray_mesh.failures.host_errors import Health, KeepsErrors, keeps_error, noted, tells_error
from alpa_on_jax.ray_mesh.processes.resharding_worker import ReshardingWorker

# What is asked while something else runs.
ALWAYS = ("check_alive", "health", "leave_groups")


class HostWorker(ReshardingWorker):
    """One host.

    Args:
        place: Which host of which mesh.
        backend: Of the mesh's devices.
        mesh_id: Alpa's number of the mesh; None of the only one.
        seed: Of the random numbers of programs.
    """

    def __init__(self, place: HostPlace, backend: HostClient, mesh_id: int | None, seed: int):
        self.calls = KeepsErrors(place.host)
        self.num_hosts, self.host_id, self.mesh_id = place.num_hosts, place.host, mesh_id
        self.backend = backend
        self.local_devices = self.backend.local_devices()
        self.num_devices = len(self.local_devices)
        self.buffers: dict[int, Sequence[Any]] = {}
        self.executables: dict[int, Any] = {}
        self.send_tasks: dict[int, Any] = {}
        self.recv_tasks: dict[int, Any] = {}
        self.broadcast_tasks: dict[int, Any] = {}
        self.data_loaders: dict[int, Any] = {}
        self.data_loader_iters: dict[int, Any] = {}
        # Moves what was saved, behind what is computed; one at a time.
        self._mover = ThreadPoolExecutor(max_workers=1)
        self._moves: list[Future[None]] = []
        self.set_runtime_random_seed(seed)
        self.join_groups(place)

    # Arrays.

    @keeps_error
    def put_buffers(
        self, uuids: int | Sequence[int], datas: Sequence[np.ndarray], num_batch: int = 1, batch_dim: int = 0
    ) -> None:
        """Put this host's parts of an array on its devices; of a batch, those of each of its `num_batch` parts."""
        split = [np.split(data, num_batch, batch_dim) if num_batch > 1 else [data] for data in datas]
        for batch, uuid in enumerate(_several(uuids)):
            self.buffers[uuid] = [
                self.backend.buffer_from_pyval(parts[batch], device)
                for parts, device in zip(split, self.local_devices, strict=True)
            ]

    def delete_buffers(self, uuids: int | Sequence[int]) -> None:
        """Forget arrays; one that a failed call should have made is not there."""
        for uuid in _several(uuids):
            self.buffers.pop(uuid, None)

    shard_and_put_non_zero_buffer = keeps_error(MeshHostWorker.shard_and_put_non_zero_buffer)
    get_buffers = tells_error(MeshHostWorker.get_buffers)

    @tells_error
    def block_until_ready_buffers(self, uuids: int | Sequence[int]) -> None:
        """Wait until arrays are computed.

        Raises:
            Exception: one of them never will be, because of this.
        """
        for uuid in _several(uuids):
            block_until_ready(self.buffers[uuid])

    # Programs.

    put_executable = keeps_error(MeshHostWorker.put_executable)
    run_executable = keeps_error(MeshHostWorker.run_executable)
    get_exec_hlo_text = tells_error(MeshHostWorker.get_exec_hlo_text)
    get_exec_total_allocation_size = tells_error(MeshHostWorker.get_exec_total_allocation_size)
    get_exec_grad_sync_channel_ids = tells_error(MeshHostWorker.get_exec_grad_sync_channel_ids)
    profile_executable_with_dummy_inputs = tells_error(MeshHostWorker.profile_executable_with_dummy_inputs)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(self.backend, *args)`; see `calling.call_on_hosts`."""
        return function(self.backend, *args)

    def set_runtime_random_seed(self, seed: int) -> None:
        """As a mesh of one process sets it; another mesh of a pipeline draws other numbers."""
        self.backend.random_state.set_seed(seed + ((self.mesh_id << 20) if self.mesh_id else 0))

    # Checkpoints.

    @keeps_error
    def save_array(
        self,
        ckpt_dir: str,
        local_cache_dir: str | None,
        uuid: int,
        device_ids: Sequence[int],
        shard_indices: Sequence[Any],
        global_shape: Sequence[int],
    ) -> None:
        """Write this host's parts of an array, each once; with a cache, write them there and move them later."""
        folder = ckpt_dir if local_cache_dir is None else local_cache_dir
        super().save_array(folder, None, uuid, device_ids, shard_indices, global_shape)
        if local_cache_dir is not None:
            self._moves.append(self._mover.submit(_move_saved, self.host_id, local_cache_dir, ckpt_dir))

    @keeps_error
    def load_array(self, ckpt_dir: str, uuid: int, device_ids: Sequence[int], shard_indices: Sequence[Any]) -> None:
        """Read this host's parts of an array."""
        whole = load_sharded_array(ckpt_dir, sorted(name for name in os.listdir(ckpt_dir) if "metadata" in name))
        parts: list[Any] = [None] * self.num_devices
        for index, device in zip(shard_indices, device_ids, strict=True):
            parts[device] = self.backend.buffer_from_pyval(whole[index], self.local_devices[device])
        self.buffers[uuid] = parts

    def sync_move_worker(self) -> None:
        """Wait until all that was saved is in its folder.

        Raises:
            Exception: it could not be moved there.
        """
        moves, self._moves = self._moves, []
        for move in moves:
            move.result()

    # Data loaders.

    put_data_loader = keeps_error(MeshHostWorker.put_data_loader)
    data_loader_iter = keeps_error(MeshHostWorker.data_loader_iter)
    data_loader_next = keeps_error(MeshHostWorker.data_loader_next)

    # Devices.

    def sync(self, sync_all_devices: bool = False) -> None:
        """Wait for everything that this host's devices compute.

        Raises:
            Exception: what went wrong since the last time that an error was told.
        """
        self.calls.raise_kept()
        block_until_all_ready(self.local_devices)

    def sync_all(self) -> None:
        self.sync()

    def get_memory_allocated(self) -> int:
        self.sync()
        return max(device_memory(device, "bytes_in_use") for device in self.local_devices)

    def get_max_memory_allocated(self) -> int:
        self.sync()
        return max(device_memory(device, "peak_bytes_in_use") for device in self.local_devices)

    def get_available_memory(self) -> int:
        """What each of this host's devices has free, in bytes; a virtual one of a CPU has its part of the machine's."""
        self.sync()
        if self.local_devices[0].platform == "cpu":
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // self.num_devices
        return min(
            device_memory(device, "bytes_limit") - device_memory(device, "bytes_in_use")
            for device in self.local_devices
        )

    def reset_memory_stats(self) -> None:
        """Stock clients keep the peak since they were started: there is nothing to reset."""

    # The process.

    def check_alive(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The number of this process, whatever else it is doing."""
        return os.getpid()

    def health(self) -> Health:
        """How this host is."""
        return self.calls.health()

    def settle(self) -> None:
        """Wait until this host's devices have nothing left to compute; what has failed is told elsewhere."""
        with contextlib.suppress(Exception):
            block_until_all_ready(self.local_devices)

    def shutdown(self) -> None:
        """Finish what is being saved, and let go of everything; the host is of no use afterwards."""
        self.sync_move_worker()
        self.groups.close()
        self.buffers.clear()
        self.executables.clear()


for _name, _method in inspect.getmembers_static(HostWorker, inspect.isfunction):
    if not _name.startswith("_") and _name not in ALWAYS:
        setattr(HostWorker, _name, noted(_method))


def _move_saved(host: int, folder: str, to: str) -> None:
    """Move what one host has saved of an array; others may have saved there, too, and move theirs."""
    os.makedirs(to, exist_ok=True)
    for name in os.listdir(folder):
        if name == f"metadata_{host}" or name.startswith(f"shard_{host}."):
            shutil.move(os.path.join(folder, name), os.path.join(to, name))


def _several(uuids: int | Iterable[int]) -> Iterable[int]:
    return uuids if isinstance(uuids, Iterable) else (uuids,)
