"""Putting arguments on a local mesh.

Takes a program's arguments, whatever and wherever they are, with what each device is to hold of them; gives back
`jax.Array`s that lie so. Invariant: an array that already does is handed on as the same object.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from alpa_cfp.spmd.compile.devices import Device, Devices, named_sharding
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_on_jax.jax.interpreters.pxla import ShardingSpec


@functools.lru_cache(maxsize=65536)
def sharding_of_spec(devices: Devices, spec: ShardingSpec) -> NamedSharding:
    """Where alpa's `ShardingSpec` puts an array on `devices`."""
    shape = spec.mesh_shape or (len(devices),)
    sharding = ArraySharding.from_proto(LogicalMesh(shape), spec.sharding_proto(), len(spec.sharding))
    if sharding is None:
        raise ValueError(f"{spec} says nothing about where an array lies")
    return named_sharding(devices, sharding)


def block_until_all_ready(devices: Sequence[Device]) -> None:
    """Wait for everything that is being computed on `devices`."""
    wanted = set(devices)
    for array in jax.live_arrays(devices[0].platform):
        if not array.is_deleted() and not wanted.isdisjoint(array.sharding.device_set):
            array.block_until_ready()


def device_memory(device: Device, name: str) -> int:
    """One of the device's memory statistics, in bytes; -1 where the device keeps none (CPU), as alpa expects."""
    return (device.memory_stats() or {}).get(name, -1)


class Placer:
    """Puts the arguments of programs on the devices of one mesh."""

    def __init__(self, devices: Devices):
        self._devices = devices
        # By the identity of the list that an executable passes at every call; the list is kept so that it stays unique.
        self._shardings: dict[int, tuple[Sequence[Any], list[NamedSharding]]] = {}

    def place(
        self,
        shard_indices: Sequence[Any],
        donated: Sequence[bool],
        is_batch: Sequence[bool],
        num_micro_batches: int | None,
        args: Sequence[Any],
    ) -> list[Any]:
        """The arguments on the mesh, a batch as a list of micro-batches (slices of dim 0, in order)."""
        if any(donated) and len({id(arg) for arg in args}) < len(args):
            args = without_shared_buffers(donated, args, jax.numpy.copy)
        shardings = self._shardings_of(shard_indices)
        placed: list[Any] = list(args)
        elsewhere = []
        for i, (arg, sharding) in enumerate(zip(args, shardings, strict=True)):
            if is_batch[i]:
                placed[i] = _split(arg, num_micro_batches or 1, sharding)
            elif not (isinstance(arg, jax.Array) and arg.sharding is sharding):
                elsewhere.append(i)
        if elsewhere:
            moved = jax.device_put(
                [args[i] for i in elsewhere],
                [shardings[i] for i in elsewhere],
                donate=[bool(donated[i]) for i in elsewhere],
            )
            for i, array in zip(elsewhere, moved, strict=True):
                placed[i] = array
        return placed

    def _shardings_of(self, shard_indices: Sequence[Any]) -> list[NamedSharding]:
        known = self._shardings.get(id(shard_indices))
        if known is None:
            shardings = [sharding_of_spec(self._devices, indices.spec) for indices in shard_indices]
            known = self._shardings[id(shard_indices)] = (shard_indices, shardings)
        return known[1]


def without_shared_buffers(donated: Sequence[bool], args: Sequence[Any], copy: Callable[[Any], Any]) -> list[Any]:
    """The arguments with copies in place of arrays that occur twice and are donated.

    A buffer cannot be donated twice, nor be used beside; jaxlib 0.10.2 ends the process when it is.

    Args:
        donated: Which arguments are donated.
        args: Arrays, on this process' devices or on a cluster, and other values.
        copy: Gives a value of its own for an array.
    """
    given_up = {id(arg) for arg, is_donated in zip(args, donated, strict=True) if is_donated}
    seen: set[int] = set()
    unshared = []
    for arg in args:
        again = hasattr(arg, "delete") and id(arg) in given_up and id(arg) in seen
        unshared.append(copy(arg) if again else arg)
        seen.add(id(arg))
    return unshared


def _split(batch: Any, num_micro_batches: int, sharding: NamedSharding) -> list[jax.Array]:
    if isinstance(batch, jax.Array):
        return list(_splitter(num_micro_batches, sharding)(batch))
    parts = np.split(np.asarray(batch), num_micro_batches)
    return jax.device_put(parts, [sharding] * num_micro_batches)


@functools.lru_cache(maxsize=1024)
def _splitter(num_micro_batches: int, sharding: NamedSharding) -> Any:
    def split(batch: jax.Array) -> tuple[jax.Array, ...]:
        placed = jax.numpy.split(batch, num_micro_batches)
        return tuple(placed)

    one_device = jax.jit(split)
    return lambda batch: jax.device_put(one_device(batch), (sharding,) * num_micro_batches)
