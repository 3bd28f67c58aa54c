"""Converts a `jax.sharding.Mesh` into a plan request, and the planner's shardings into `PartitionSpec`s of that mesh.

Takes meshes of up to `MOST_AXES` axes with any names and devices in any order. Invariant: the logical mesh numbers
devices in the order of the mesh.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from alpa_cfp.errors import AutoshardError
from alpa_cfp.planner.request import LocalDevices, PlanRequest, TargetDevices
from alpa_cfp.spmd.shardings.sharding import MOST_AXES, ArraySharding, LogicalMesh
from alpa_cfp.targets.target import TargetMesh

AnyMesh = Mesh | AbstractMesh | TargetMesh
Dims = tuple[tuple[str, ...], ...]


def request_for(mesh: AnyMesh) -> PlanRequest:
    """Returns the request for a step on `mesh`, without micro-batches.

    Raises:
        AutoshardError: it is no mesh, or it has no axes, too many, or one whose name is no text.
    """
    if not isinstance(mesh, AnyMesh):
        raise AutoshardError.no_mesh(mesh)
    if not 1 <= len(mesh.axis_names) <= MOST_AXES or not all(isinstance(name, str) for name in mesh.axis_names):
        raise AutoshardError.axes(mesh.axis_names, MOST_AXES)
    shape = tuple(mesh.axis_sizes)
    if isinstance(mesh, TargetMesh):
        # A plan that does not fit there is none.
        return PlanRequest(
            LogicalMesh(shape), TargetDevices(mesh.target), memory_budget_bytes=mesh.target.chip.memory_bytes
        )
    return PlanRequest(LogicalMesh(shape), LocalDevices(_local_devices(mesh), shape))


def platform_of(mesh: AnyMesh) -> str:
    """Returns the platform of a mesh's devices ("cpu", "gpu", "tpu"); for an abstract mesh that of this process."""
    if isinstance(mesh, TargetMesh):
        return mesh.target.chip.kind
    return mesh.devices.flat[0].platform if isinstance(mesh, Mesh) else jax.default_backend()


def axis_types_of(mesh: AnyMesh) -> tuple[str, ...]:
    """Returns the type of each axis in JAX: "Auto", "Explicit" or "Manual"."""
    return tuple(kind.name for kind in mesh.axis_types)


def make_mesh(shape: tuple[int, ...], names: tuple[str, ...], types: tuple[str, ...], devices: Sequence[Any]) -> Mesh:
    """Returns a mesh of `devices`."""
    kinds = tuple(jax.sharding.AxisType[kind] for kind in types)
    return Mesh(np.array(devices, object).reshape(shape), names, axis_types=kinds)


def of_shape(mesh: AnyMesh, shape: tuple[int, ...]) -> AnyMesh:
    """Returns `mesh`; if it has another shape, one of its devices with this one, whose axes are "axis_0" and so on."""
    if tuple(mesh.axis_sizes) == shape:
        return mesh
    names = tuple(f"axis_{number}" for number in range(len(shape)))
    if isinstance(mesh, TargetMesh):
        return replace(mesh, axis_sizes=shape, axis_names=names)
    types = ("Auto",) * len(shape)
    if isinstance(mesh, Mesh):
        return make_mesh(shape, names, types, list(mesh.devices.flat))
    return AbstractMesh(shape, names, axis_types=tuple(jax.sharding.AxisType[kind] for kind in types))


def dims_of(sharding: ArraySharding, axis_names: tuple[str, ...]) -> Dims:
    """Returns for each dim the names of the axes that split it, major to minor; the sharding has whole axes only."""
    return tuple(tuple(axis_names[axis.index] for axis in axes) for axes in sharding.dims)


def spec_of(dims: Dims) -> PartitionSpec:
    """Returns the `PartitionSpec` without trailing dims that are not split, as JAX writes it."""
    entries = [None if not names else names[0] if len(names) == 1 else names for names in dims]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def of_whole_axes(sharding: ArraySharding, rank: int) -> ArraySharding:
    """Returns `sharding` without parts of axes and the axes behind them in a dim.

    No `PartitionSpec` can describe them.

    Args:
        sharding: A sharding.
        rank: The number of dims that may be split; further ones are the bits of random keys.
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
