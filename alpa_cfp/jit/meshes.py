"""A `jax.sharding.Mesh` as the planner is asked for it, and the planner's shardings as `PartitionSpec`s of that mesh.

Takes meshes of one or two axes with any names and devices in any order. Invariant: the logical mesh numbers the mesh's
devices in the order in which the mesh has them.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from alpa_cfp.errors import AutoshardError
from alpa_cfp.planner.request import LocalDevices, PlanRequest
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh

Dims = tuple[tuple[str, ...], ...]


def request_for(mesh: Mesh | AbstractMesh) -> PlanRequest:
    """What the planner is asked: a step on `mesh`, without micro-batches.

    Raises:
        AutoshardError: it is no mesh, or has not one or two axes with texts as names.
    """
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        raise AutoshardError.no_mesh(mesh)
    if len(mesh.axis_names) not in (1, 2) or not all(isinstance(name, str) for name in mesh.axis_names):
        raise AutoshardError.axes(mesh.axis_names)
    shape = tuple(mesh.axis_sizes)
    return PlanRequest(LogicalMesh(shape), LocalDevices(_local_devices(mesh), shape))


def platform_of(mesh: Mesh | AbstractMesh) -> str:
    """The platform of its devices; of an abstract mesh that of this process."""
    return mesh.devices.flat[0].platform if isinstance(mesh, Mesh) else jax.default_backend()


def axis_types_of(mesh: Mesh | AbstractMesh) -> tuple[str, ...]:
    """How jax treats each axis: "Auto", "Explicit" or "Manual"."""
    return tuple(kind.name for kind in mesh.axis_types)


def make_mesh(shape: tuple[int, ...], names: tuple[str, ...], types: tuple[str, ...], devices: Sequence[Any]) -> Mesh:
    """A mesh of `devices`."""
    kinds = tuple(jax.sharding.AxisType[kind] for kind in types)
    return Mesh(np.array(devices, object).reshape(shape), names, axis_types=kinds)


def dims_of(sharding: ArraySharding, axis_names: tuple[str, ...]) -> Dims:
    """For each dim the names of the axes that split it, major to minor; the sharding has whole axes only."""
    return tuple(tuple(axis_names[axis.index] for axis in axes) for axes in sharding.dims)


def spec_of(dims: Dims) -> PartitionSpec:
    """The `PartitionSpec`, as jax writes it: without dims at its end that are not split."""
    entries = [None if not names else names[0] if len(names) == 1 else names for names in dims]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def of_whole_axes(sharding: ArraySharding, rank: int) -> ArraySharding:
    """`sharding` without what no `PartitionSpec` can say: parts of axes, and what comes after them in a dim.

    Args:
        sharding: Any.
        rank: The dims from there on are not split either; they are the bits of random keys.
    """
    sizes = sharding.mesh.shape
    dims = []
    for dim, axes in enumerate(sharding.dims):
        whole = [axis.size == sizes[axis.index] for axis in axes]
        count = whole.index(False) if False in whole else len(axes)
        dims.append(axes[:count] if dim < rank else ())
    return ArraySharding(sharding.mesh, tuple(dims))


def _local_devices(mesh: Mesh | AbstractMesh) -> tuple[Any, ...]:
    if isinstance(mesh, AbstractMesh):
        return (None,) * mesh.size
    here = jax.process_index()
    return tuple(device if device.process_index == here else None for device in mesh.devices.flat)
