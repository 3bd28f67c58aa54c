"""Logical meshes by name: takes "2x4", gives back alpa's logical mesh over the first devices of this process."""

from functools import cache
from math import prod

import alpa
import jax
from alpa.shard_parallel.auto_sharding import LogicalDeviceMesh

from alpa_cfp_bench.workloads.sizes import mesh_shape


@cache
def logical_mesh(name: str) -> LogicalDeviceMesh:
    """Alpa's logical mesh called `name` over as many of this process' devices as it has, the first ones."""
    shape = mesh_shape(name)
    devices = jax.local_devices()
    if len(devices) < prod(shape):
        raise RuntimeError(f"mesh {name} needs {prod(shape)} devices, and this process has {len(devices)}")
    return alpa.LocalPhysicalDeviceMesh(devices[: prod(shape)]).get_logical_mesh(shape)
