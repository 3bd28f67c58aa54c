"""Logical meshes by name: takes "2x4", gives back alpa's logical mesh over the first 8 devices of this process."""

from functools import cache
from math import prod

import alpa
import jax
from alpa.shard_parallel.auto_sharding import LogicalDeviceMesh

MESH_AXES = ("data", "model")
MESHES = ("1x8", "2x4", "2x2")


def mesh_shape(name: str) -> tuple[int, int]:
    """The sizes of the axes `data` and `model` of the mesh called `name`."""
    data, model = name.split("x")
    return int(data), int(model)


@cache
def logical_mesh(name: str) -> LogicalDeviceMesh:
    """Alpa's logical mesh called `name` over as many of this process' devices as it has, the first ones."""
    shape = mesh_shape(name)
    devices = jax.local_devices()
    if len(devices) < prod(shape):
        raise RuntimeError(
            f"mesh {name} needs {prod(shape)} devices, but there are {len(devices)}: see tests/conftest.py"
        )
    return alpa.LocalPhysicalDeviceMesh(devices[: prod(shape)]).get_logical_mesh(shape)
