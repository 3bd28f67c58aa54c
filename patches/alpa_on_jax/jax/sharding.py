"""The attribute `sharding_spec`, which alpa's `ShardedDeviceArray` had and `jax.Array` has not."""

from typing import Any

from jax._src.array import ArrayImpl
from jax.sharding import NamedSharding
from jaxlib import xla_client as xc

from alpa_cfp.spmd.module.hlo_module import HloSharding
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh
from alpa_on_jax.jax.interpreters.pxla import ShardingSpec


def _sharding_spec(array: Any) -> ShardingSpec:
    """How an array lies on its mesh, in alpa's terms; one on a single device is replicated on that one.

    Raises:
        AttributeError: its sharding is not one over the axes of a mesh.
    """
    from alpa.shard_parallel.auto_sharding import hlo_sharding_to_sharding_spec

    sharding = array.sharding
    if isinstance(sharding, NamedSharding):
        mesh = LogicalMesh(tuple(sharding.mesh.axis_sizes))
        named = dict(zip(sharding.mesh.axis_names, range(len(mesh.shape)), strict=True))
        spec = (*sharding.spec, *(None for _ in range(array.ndim - len(sharding.spec))))
        dims = tuple(_axes(mesh, named, names) for names in spec)
        proto = ArraySharding(mesh, dims).to_proto()
    elif sharding.is_fully_replicated:
        mesh = LogicalMesh((len(sharding.device_set),))
        proto = xc.OpSharding()
        proto.type = xc.OpSharding.Type.REPLICATED
    else:
        raise AttributeError(f"an array with {sharding} has no sharding_spec: it names no mesh axes")
    return hlo_sharding_to_sharding_spec(HloSharding(proto), array.aval, mesh.shape)


def _axes(mesh: LogicalMesh, named: dict[Any, int], names: Any) -> tuple[Axis, ...]:
    if names is None:
        return ()
    indices = [named[name] for name in (names if isinstance(names, tuple) else (names,))]
    return tuple(Axis(index, 1, mesh.shape[index]) for index in indices if mesh.shape[index] > 1)


ADDED_TO_CLASSES = {ArrayImpl: {"sharding_spec": property(_sharding_spec)}}
