"""Parts of an array from the devices of one mesh to those of another: what a host does for alpa's resharding tasks.

Takes alpa's specs of the tiles that a host sends or receives, and what its devices hold of the array; sends, or gives
what they hold then. A message's tag is its pair of devices: alpa's instruction lists give each pair the same order on
both sides. Tiles are put together in numpy, in memory of their own, and each device is given its part once.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from alpa_on_jax.ray_mesh.transport import Endpoint

# A device's number among those of its host, and what it is to hold.
Received = dict[int, np.ndarray]


def send_tiles(endpoint: Endpoint, specs: Iterable[Any], parts: Sequence[Any]) -> None:
    """Send tiles of an array.

    Args:
        endpoint: The group.
        specs: Alpa's `ReshardingSendSpec`s.
        parts: What each device holds of the array.
    """
    fetched: dict[int, np.ndarray] = {}
    for spec in specs:
        device, tile = spec.device_id, spec.tile_spec
        if device not in fetched:
            fetched[device] = np.asarray(parts[device])
        part = fetched[device][tuple(tile.offset)] if tile.offset else fetched[device]
        endpoint.send(f"{device}>{tile.gpu_idx}", np.ascontiguousarray(part), tile.rank)


def receive_tiles(endpoint: Endpoint, specs: Iterable[Any], parts: Sequence[Any]) -> Received:
    """Receive tiles of an array.

    Args:
        endpoint: The group.
        specs: Alpa's `ReshardingRecvSpec`s.
        parts: What each device holds of the array before; None for nothing.
    """
    received: Received = {}
    for spec in specs:
        shape, device = tuple(spec.shape), spec.device_id
        for tile in spec.tile_specs:
            region = _region(tile.offset, shape)
            size = _size(region)
            part = endpoint.recv(f"{tile.gpu_idx}>{device}", size, spec.dtype, tile.rank)
            if size == shape:
                received[device] = part
            else:
                if device not in received:
                    received[device] = _before(parts[device], shape, spec.dtype)
                received[device][region] = part
    return received


def broadcast_tiles(
    endpoint: Endpoint, specs: Iterable[Any], parts: Sequence[Any], rank_of: Callable[[str], int]
) -> Received:
    """Send tiles of an array to several hosts each, or receive them: a message a host, whatever devices it has.

    Args:
        endpoint: The group.
        specs: Alpa's `ReshardingBroadcastSpec`s.
        parts: What each device holds of the array.
        rank_of: The rank of a device by alpa's name of it.
    """
    received: Received = {}
    for spec in specs:
        source, *others = spec.comm_key.split("$")
        if spec.devices_global_rank[0] == 0:
            tile = np.asarray(parts[spec.devices_ids[0]])[tuple(spec.tensor_slices[0])]
            for rank in dict.fromkeys(map(rank_of, others)):
                endpoint.send(spec.comm_key, np.ascontiguousarray(tile), rank)
            continue
        shape = tuple(spec.recv_tile_shape)
        region = _region(spec.tensor_slices[0], shape)
        part = endpoint.recv(spec.comm_key, _size(region), spec.dtype, rank_of(source))
        for device in spec.devices_ids:
            if device not in received:
                received[device] = _before(parts[device], shape, spec.dtype)
            received[device][region] = part
    return received


def _region(slices: Sequence[slice], shape: Sequence[int]) -> tuple[slice, ...]:
    """Slices with both ends."""
    return tuple(
        slice(each.start or 0, size if each.stop is None else each.stop)
        for each, size in zip(slices, shape, strict=True)
    )


def _size(region: Sequence[slice]) -> tuple[int, ...]:
    return tuple(each.stop - each.start for each in region)


def _before(part: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """What a device holds, in memory to write into."""
    if part is None or tuple(part.shape) != shape:
        return np.empty(shape, dtype)
    return np.array(part)
