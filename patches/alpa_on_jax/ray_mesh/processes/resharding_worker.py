"""What a host's process does between meshes: alpa's resharding tasks and all-reduces over meshes, on the transport.

The part of `HostWorker` that pipelines need. Alpa's worker has the same calls, on NCCL through cupy.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from alpa.device_mesh import MeshHostWorker

from alpa_cfp.spmd.distributed.host_place import HostPlace
from alpa_on_jax.ray_mesh import transport
from alpa_on_jax.ray_mesh.failures.host_errors import keeps_error
from alpa_on_jax.ray_mesh.resharding import tiles
from alpa_on_jax.ray_mesh.resharding.groups import Groups


class ReshardingWorker(MeshHostWorker):
    """A host that exchanges arrays with hosts of other meshes."""

    def join_groups(self, place: HostPlace) -> None:
        """Be ready to be in groups; to be called once, when the devices are known."""
        limits = transport.Limits(open_s=place.connect_s, wait_s=place.call_s)
        self.groups = Groups(place.ip, limits)
        self.backend.exchange = lambda action, value: self.groups.exchange(action, value, self.backend.device_count())

    def listen(self, group: str) -> transport.Address:
        """See `Groups.listen`."""
        return self.groups.listen(group)

    def open_group(
        self,
        group: str,
        rank: int,
        addresses: Sequence[transport.Address],
        token: bytes,
        rank_of_device: Mapping[str, int],
    ) -> None:
        """See `Groups.open`."""
        self.groups.open(group, rank, addresses, token, rank_of_device)

    def bind_cross_mesh(self, key: str, group: str, meshes: Sequence[Sequence[int]]) -> None:
        """See `Groups.bind`."""
        self.groups.bind(key, group, meshes)

    def destroy_collective_group(self, group_name: str = "default") -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Leave a group, if this host is in it."""
        self.groups.close(group_name)

    def leave_groups(self) -> None:
        """Leave all groups; what waits for another mesh fails."""
        self.groups.close()

    @keeps_error
    def run_resharding_send_task(self, uuid: int, ary_uuid: int) -> None:
        """Send this host's tiles of an array."""
        task = self.send_tasks[uuid]
        tiles.send_tiles(self.groups.endpoint(task.group_name), task.tile_specs, self.buffers[ary_uuid])

    @keeps_error
    def run_resharding_recv_task(self, uuid: int, ary_uuid: int, set_empty_buffer: bool = True) -> None:
        """Receive this host's tiles of an array."""
        del set_empty_buffer  # tiles come into memory of their own
        task = self.recv_tasks[uuid]
        endpoint = self.groups.endpoint(task.group_name)
        self._receive(ary_uuid, lambda parts: tiles.receive_tiles(endpoint, task.recv_specs, parts))

    @keeps_error
    def run_resharding_broadcast_task(self, uuid: int, ary_uuid: int, set_empty_buffer: bool = True) -> None:
        """Send this host's tiles of an array to several hosts each, or receive them."""
        del set_empty_buffer
        task = self.broadcast_tasks[uuid]
        group, specs = task.group_name, task.broadcast_specs.values()
        endpoint = self.groups.endpoint(group)

        def rank_of(device: str) -> int:
            return self.groups.rank_of(group, device)

        self._receive(ary_uuid, lambda parts: tiles.broadcast_tiles(endpoint, specs, parts, rank_of))

    def _receive(self, ary_uuid: int, receive: Callable[[Sequence[Any]], dict[int, np.ndarray]]) -> None:
        """Let this host's devices hold what is received of an array, and what they held beside it."""
        parts = list(self.buffers.get(ary_uuid, [None] * self.num_devices))
        for device, part in receive(parts).items():
            # The memory is this part's alone, so that the device may take it as it is.
            parts[device] = jax.device_put(part, self.local_devices[device])
        self.buffers[ary_uuid] = parts
