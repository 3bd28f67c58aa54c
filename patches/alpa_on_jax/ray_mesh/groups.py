"""The groups in which hosts of several meshes send arrays to each other.

In a host's process: the listeners and endpoints of the groups that it is in, by alpa's names of them, and the sum of a
scalar over meshes. In the driver: `open_group`, which tells all hosts of a group the addresses of all. A rank is a
host. Invariant: a scalar that is summed over meshes has the same bits on every host.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from alpa_on_jax.ray_mesh import transport, waiting

# How alpa names what is done with a scalar of each mesh.
_OPERATIONS = {"SUM": np.add, "AND": np.logical_and, "OR": np.logical_or}


class Groups:
    """The groups that a host is in.

    Args:
        ip: The address of its node.
        limits: Of waits.
    """

    def __init__(self, ip: str, limits: transport.Limits):
        self._ip, self._limits = ip, limits
        self._listeners: dict[str, transport.Listener] = {}
        self._endpoints: dict[str, transport.Endpoint] = {}
        self._rank_of_device: dict[str, Mapping[str, int]] = {}
        self._of_key: dict[str, tuple[str, Sequence[Sequence[int]]]] = {}

    def listen(self, group: str) -> transport.Address:
        """Begin to join a group; gives where."""
        self._listeners[group] = transport.Listener(self._ip, self._limits)
        return self._listeners[group].address

    def open(
        self,
        group: str,
        rank: int,
        addresses: Sequence[transport.Address],
        token: bytes,
        rank_of_device: Mapping[str, int],
    ) -> None:
        """Join a group, once all others listen; see `open_group`.

        Raises:
            transport.TransportError: the others were not to be reached.
        """
        self._endpoints[group] = self._listeners.pop(group).open(rank, addresses, token)
        self._rank_of_device[group] = rank_of_device

    def close(self, group: str | None = None) -> None:
        """Leave a group; by default all."""
        for name in [*self._endpoints] if group is None else [group]:
            endpoint = self._endpoints.pop(name, None)
            if endpoint is not None:
                endpoint.close()

    def endpoint(self, group: str) -> transport.Endpoint:
        """This host's end of a group."""
        return self._endpoints[group]

    def rank_of(self, group: str, device: str) -> int:
        """The host of a device, which alpa knows by a name."""
        return self._rank_of_device[group][device]

    def bind(self, key: str, group: str, meshes: Sequence[Sequence[int]]) -> None:
        """Let `exchange` use a group for what alpa calls `key`.

        Args:
            key: Alpa's name of several meshes.
            group: The group of their hosts.
            meshes: For each mesh the ranks of its hosts.
        """
        self._of_key[key] = group, meshes

    def exchange(self, action: str, value: np.ndarray, num_devices: int) -> np.ndarray:
        """What alpa's all-reduce over meshes gives for a scalar that all hosts of a mesh have.

        Alpa divides what is summed by the number of the mesh's devices, because in its fork of XLA all of them take
        part.

        Args:
            action: "<operation>;<key>".
            value: This mesh's scalar.
            num_devices: Of this mesh.
        """
        operation, key = action.split(";", 1)
        group, meshes = self._of_key[key]
        endpoint = self._endpoints[group]
        if operation == "SUM":
            value = value * np.asarray(num_devices, value.dtype)
        own = np.ascontiguousarray(value).reshape(1)
        here = next(index for index, ranks in enumerate(meshes) if endpoint.rank in ranks)
        position = meshes[here].index(endpoint.rank)
        for index, ranks in enumerate(meshes):
            for other, rank in enumerate(ranks):
                if index != here and other % len(meshes[here]) == position:
                    endpoint.send(action, own, rank)
        parts = [
            own if index == here else endpoint.recv(action, own.shape, own.dtype, ranks[position % len(ranks)])
            for index, ranks in enumerate(meshes)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = _OPERATIONS[operation](total, part).astype(own.dtype)
        return total.reshape(())


def open_group(group: str, workers: Sequence[Any], rank_of_device: Mapping[str, int] | None = None) -> None:
    """Let hosts send arrays to each other; each is the rank of its place in `workers`.

    Args:
        group: A name that no other group of any of them has.
        workers: The handles of their processes.
        rank_of_device: Alpa's names of the devices, and of which rank each is.

    Raises:
        transport.TransportError: they cannot reach each other.
        errors.MeshLostError: one is gone.
    """
    addresses = waiting.get([worker.listen.remote(group) for worker in workers])
    token = transport.new_token()
    waiting.get(
        [
            worker.open_group.remote(group, rank, addresses, token, dict(rank_of_device or {}))
            for rank, worker in enumerate(workers)
        ]
    )
