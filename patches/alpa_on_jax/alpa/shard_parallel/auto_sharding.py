"""Replacements in `alpa.shard_parallel.auto_sharding`: shardings as alpa's `ShardingSpec`; who plans (the seam)."""

import functools
import math
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh
from alpa_on_jax.jax.interpreters.pxla import Chunked, NoSharding, Replicated, ShardedAxis, ShardingSpec
from alpa_on_jax.replacing import replace
from alpa_on_jax.xla_extension import planner


def apply(module: ModuleType) -> None:
    """Let a dim that is split along several mesh axes, in any order, have a spec (alpa asserts that there is none for
    some); let an option that is a planner plan."""
    original = module._hlo_sharding_to_sharding_spec_no_tuple
    original_pass = module.run_auto_sharding_pass

    @functools.wraps(original_pass)
    def run_auto_sharding_pass(
        hlo: Any,
        logical_mesh: Any,
        return_mode: str,
        num_micro_batches: int | None,
        as_option: Any,
        rewrite_for_grad_acc: bool = False,
        rewrite_grad_acc_indices: Sequence[int] | None = None,
        memory_budget_per_device: float | None = None,
    ) -> Any:
        gradients = rewrite_grad_acc_indices if rewrite_for_grad_acc else ()
        request = planner.request(logical_mesh, num_micro_batches, gradients, memory_budget_per_device)
        with planner.active_planner(as_option, request):
            return original_pass(
                hlo,
                logical_mesh,
                return_mode,
                num_micro_batches,
                as_option,
                rewrite_for_grad_acc,
                rewrite_grad_acc_indices,
                memory_budget_per_device,
            )

    def _hlo_sharding_to_sharding_spec_no_tuple(proto: Any, aval: Any, logical_mesh: Any) -> ShardingSpec:
        shape = tuple(int(size) for size in logical_mesh.shape)
        sharding = ArraySharding.from_proto(LogicalMesh(shape), proto, len(aval.shape))
        if sharding is None or _alpa_has_a_spec(sharding):
            return original(proto, aval, logical_mesh)
        return _spec(sharding, shape)

    replace(module, _hlo_sharding_to_sharding_spec_no_tuple, run_auto_sharding_pass)


def _alpa_has_a_spec(sharding: ArraySharding) -> bool:
    """Whether the devices along each dim, and those with the same part, are numbered at equal distances.

    What they have is one cut a dim then, whatever the mesh: two functions that are planned on 2x4 and on 8x1, and put
    an argument on the same devices, say the same of it.
    """
    mesh = sharding.mesh
    groups = (*sharding.dims, mesh.remaining(sharding.axes))
    return all(
        _distance(mesh, major) == minor.size * _distance(mesh, minor)
        for axes in groups
        for major, minor in pairwise(axes)
    )


def _distance(mesh: LogicalMesh, axis: Axis) -> int:
    """From a device to the next one along `axis`."""
    return math.prod(mesh.shape[axis.index :]) // (axis.pre * axis.size)


def _spec(sharding: ArraySharding, shape: Sequence[int]) -> ShardingSpec:
    """One cut for each axis part, and the mesh as those parts, major to minor."""
    cuts = {axis: number for number, axis in enumerate(sharding.axes)}
    parts = sorted([*sharding.axes, *sharding.mesh.remaining(sharding.axes)], key=lambda axis: (axis.index, axis.pre))
    dims = [Chunked([axis.size for axis in axes]) if axes else NoSharding() for axes in sharding.dims]
    return ShardingSpec(dims, [ShardedAxis(cuts[part]) if part in cuts else Replicated(part.size) for part in parts])
