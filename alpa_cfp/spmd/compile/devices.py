"""From an `ArraySharding` to a `NamedSharding` on given devices."""

import functools
import itertools
from typing import Any, TypeAlias

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh

# `jax.Device` is a variable to the type checker.
Device: TypeAlias = Any
Devices: TypeAlias = tuple[Device, ...]


_first_with: dict[tuple, NamedSharding] = {}


@functools.lru_cache(maxsize=65536)
def named_sharding(devices: Devices, sharding: ArraySharding) -> NamedSharding:
    """The `NamedSharding` of an array with `sharding` on `devices`.

    Mesh axes are named "x", "y", ...; where a dim is split by a part of an axis, the parts are axes of their own. One
    object for all arguments that put the same parts on the same devices, also when they name another logical mesh, so
    that an array's placement can be compared by identity.
    """
    mesh = sharding.mesh
    placement = tuple(tuple(mesh.linear_coordinate(i, axes) for axes in sharding.dims) for i in range(mesh.num_devices))
    key = (devices, placement)
    if key not in _first_with:
        parts = _axis_parts(mesh, sharding.axes)
        jax_mesh = _mesh(devices, mesh, parts)
        names = dict(zip(parts, jax_mesh.axis_names, strict=True))
        spec = PartitionSpec(*(tuple(names[axis] for axis in axes) or None for axes in sharding.dims))
        _first_with[key] = NamedSharding(jax_mesh, spec)
    return _first_with[key]


def replicated_sharding(devices: Devices, mesh: LogicalMesh) -> NamedSharding:
    """The sharding of an array that every device holds whole."""
    return named_sharding(devices, ArraySharding.replicated(mesh, 0))


@functools.lru_cache(maxsize=4096)
def _mesh(devices: Devices, mesh: LogicalMesh, parts: tuple[Axis, ...]) -> Mesh:
    names = []
    for part in parts:
        name = mesh.axis_names[part.index]
        names.append(name if part.size == mesh.shape[part.index] else f"{name}_{part.pre}_{part.size}")
    return Mesh(np.array(devices).reshape([part.size for part in parts]), names)


def _axis_parts(mesh: LogicalMesh, used: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Every mesh axis, those of which `used` has parts in their parts, in row-major order of the devices."""
    if any(a.overlaps(b) for a, b in itertools.combinations(used, 2)):
        raise ValueError(f"axes {used} overlap on the logical mesh {mesh.shape}")
    single = (Axis(index, 1, 1) for index, size in enumerate(mesh.shape) if size == 1)
    return tuple(sorted([*used, *mesh.remaining(used), *single]))
