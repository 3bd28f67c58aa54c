"""The auto-sharding pass: from an unoptimised program to one whose values all have a sharding.

Takes its options from the pass context that alpa sets around it. With `enable_auto_sharding=False`, and on a mesh of
one device, it is sharding propagation alone; otherwise a planner decides, if the method's option is one (`planner`),
or alpa's ILP (`ilp`), or one of its simple rules (`heuristics`). Invariant: alpa's `last_s_val` and `last_objective`
are those of this pass; None where nothing was solved. Afterwards a program with pipeline markers is cut into its
stages, which alpa takes from `alpa.shard_parallel.auto_sharding`.
"""

import math
from typing import TYPE_CHECKING

from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.module.stages import has_stages, slice_stages
from alpa_cfp.spmd.propagation import propagate
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_on_jax.xla_extension import planner
from alpa_on_jax.xla_extension.auto_sharding.heuristics import shard_with_heuristic
from alpa_on_jax.xla_extension.auto_sharding.ilp import shard_with_ilp
from alpa_on_jax.xla_extension.auto_sharding.options import options_of_pass_context
from alpa_on_jax.xla_extension.pass_context import get_option, limits_of_pass_context

if TYPE_CHECKING:
    from alpa_cfp.spmd.compile.executable import CompileOptions


def run_auto_sharding(module: HloModule, options: "CompileOptions") -> None:
    """Annotate `module` in place; hand its stages, if it has any, to alpa.

    Raises:
        AutoShardingInfeasibleError: no solution fits the options.
        BatchDimError: the batch dim cannot be split as the options force it to be.
        HeuristicError: the options force a simple rule that there is not.
    """
    # Not at the top: alpa imports this package as the forked jaxlib's.
    from alpa.shard_parallel import auto_sharding

    auto_sharding.last_s_val = auto_sharding.last_objective = None
    mesh = LogicalMesh(tuple(int(size) for size in get_option("auto_sharding::device_mesh_shape")))
    # On one device there is nothing to choose; a planner may still want to know what the program costs there.
    if get_option("auto_sharding::enable") and (math.prod(mesh.shape) > 1 or planner.current() is not None):
        _choose(module)
    else:
        # Of a program in stages also the results: they are those of a stage, sharded as its end marker.
        propagate(module, mesh, to_outputs=options.propagate_to_outputs or has_stages(module))
    if module.mesh is None:  # a planner that says what a candidate stage costs has left it as it is
        auto_sharding.set_auto_sharded_hlo_stages(([], []))
        return
    stages = slice_stages(module)
    if stages:
        auto_sharding.set_auto_sharded_hlo_stages(([name for name, _ in stages], [stage for _, stage in stages]))


def _choose(module: HloModule) -> None:
    """Let a planner annotate `module`, or a simple rule, or the ILP."""
    asked = planner.current()
    if asked is not None:
        option, request = asked
        module.combiner_limits = limits_of_pass_context()
        option.annotate_module(module, request)
        return
    options = options_of_pass_context()
    if options.force_simple_heuristic:
        shard_with_heuristic(module, options)
    else:
        shard_with_ilp(module, options)
