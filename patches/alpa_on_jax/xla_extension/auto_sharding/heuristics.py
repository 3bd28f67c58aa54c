"""Split parameters by a simple rule instead of solving: alpa's `force_simple_heuristic`.

Takes an unoptimised module and the options; annotates the module in place. The rule gives each parameter its sharding,
a result that takes a donated parameter's buffer lies as that parameter, the other results are replicated, and sharding
propagation decides what is between. Invariant: a parameter that its rule would split unevenly is not split at all.
Source: `AnnotateShardingWithSimpleHeuristic` in tensorflow-alpa's auto_sharding_util.cc.
"""

from collections.abc import Callable, Sequence

from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.propagation import propagate
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_on_jax import errors
from alpa_on_jax.xla_extension.auto_sharding.options import SolverOptions
from alpa_on_jax.xla_extension.auto_sharding.specs import Mesh, Spec, replicated

_Rule = Callable[[Mesh, Sequence[int]], Spec]


def shard_with_heuristic(module: HloModule, options: SolverOptions) -> None:
    """Annotate `module` in place, its parameters split by the rule called `options.force_simple_heuristic`.

    Raises:
        HeuristicError: there is no such rule.
    """
    rule = _RULES.get(options.force_simple_heuristic)
    if rule is None:
        raise errors.HeuristicError(options.force_simple_heuristic, tuple(_RULES))
    mesh, logical_mesh = Mesh(options.mesh_shape), LogicalMesh(options.mesh_shape)
    inputs = [mesh.to_sharding(_split(rule, mesh, shape.dims), logical_mesh) for shape in module.shape.parameters]
    propagate(module, logical_mesh, to_outputs=False, inputs=inputs)


def _split(rule: _Rule, mesh: Mesh, shape: Sequence[int]) -> Spec:
    """What `rule` says for a parameter of `shape`, where that divides it; else not split."""
    if not shape:
        return ()
    spec = rule(mesh, shape)
    uneven = any(size % mesh.sizes[code] for size, code in zip(shape, spec, strict=True))
    return replicated(len(shape)) if uneven else spec


def _largest(mesh: Mesh, shape: Sequence[int]) -> Spec:
    """Split the largest dim; on a 2D mesh the largest one along axis 1 and the next one along axis 0."""
    by_size = sorted(range(len(shape)), key=lambda dim: shape[dim], reverse=True)
    if mesh.is_2d and len(shape) > 1:
        return mesh.tile(len(shape), by_size[:2], (1, 0))
    return mesh.tile_1d(len(shape), by_size[0])


_RULES: dict[str, _Rule] = {
    "shard-largest": _largest,
    "shard-first": lambda mesh, shape: mesh.tile_1d(len(shape), 0),
    "shard-last": lambda mesh, shape: mesh.tile_1d(len(shape), len(shape) - 1),
}
