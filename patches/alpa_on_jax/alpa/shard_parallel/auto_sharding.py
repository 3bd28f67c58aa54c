"""Replacements in `alpa.shard_parallel.auto_sharding`: reading an XLA sharding as alpa's `ShardingSpec`."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from alpa_on_jax.jax.interpreters.pxla import Chunked, NoSharding, Replicated, ShardedAxis, ShardingSpec
from alpa_on_jax.replacing import replace
from alpa_on_jax.xla_extension.sharding import ArraySharding, LogicalMesh


def apply(module: ModuleType) -> None:
    """Let a dim that is split along several mesh axes, in any order, have a spec; alpa asserts that there is none."""
    original = module._hlo_sharding_to_sharding_spec_no_tuple

    def _hlo_sharding_to_sharding_spec_no_tuple(proto: Any, aval: Any, logical_mesh: Any) -> ShardingSpec:
        shape = tuple(int(size) for size in logical_mesh.shape)
        sharding = ArraySharding.from_proto(LogicalMesh(shape), proto, len(aval.shape))
        if sharding is None or all(len(axes) <= 1 for axes in sharding.dims):
            return original(proto, aval, logical_mesh)
        return _spec(sharding, shape)

    replace(module, _hlo_sharding_to_sharding_spec_no_tuple)


def _spec(sharding: ArraySharding, shape: Sequence[int]) -> ShardingSpec:
    """One cut for each axis part, and the mesh as those parts, major to minor."""
    cuts = {axis: number for number, axis in enumerate(sharding.axes)}
    parts = sorted([*sharding.axes, *sharding.mesh.remaining(sharding.axes)], key=lambda axis: (axis.index, axis.pre))
    dims = [Chunked([axis.size for axis in axes]) if axes else NoSharding() for axes in sharding.dims]
    return ShardingSpec(dims, [ShardedAxis(cuts[part]) if part in cuts else Replicated(part.size) for part in parts])
