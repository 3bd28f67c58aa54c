"""In Python, what Alpa's forked jaxlib offered as `jax._src.lib.xla_extension`.

The names here are those that alpa calls; each module below has one part of what they do. Alpa's three states of a
program are `HloModule`s: unoptimised (as lowered), sharding-annotated (`run_auto_sharding`), partitioned
(`run_spmd_partitioner`).
"""

from alpa_cfp.spmd.compile.costs import hlo_module_count_flop_dot_conv_only
from alpa_cfp.spmd.compile.executable import Client, CompileOptions, get_grad_sync_channel_ids
from alpa_cfp.spmd.compile.phases import split_at_exchanges
from alpa_cfp.spmd.module.hlo_module import (
    HloModule,
    HloSharding,
    XlaComputation,
    set_hlo_module_input_shardings,
    set_hlo_module_output_shardings,
)
from alpa_cfp.spmd.partition import partition_to_run
from alpa_cfp.spmd.propagation import propagate
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_on_jax.jax._src.device_array import DeviceArray
from alpa_on_jax.xla_extension.auto_sharding import run_auto_sharding
from alpa_on_jax.xla_extension.pass_context import clear_pass_context, get_option, set_pass_context

__all__ = [
    "Client",
    "DeviceArray",
    "HloModule",
    "HloSharding",
    "XlaComputation",
    "clear_pass_context",
    "get_alpa_jaxlib_version",
    "get_grad_sync_channel_ids",
    "hlo_module_count_flop_dot_conv_only",
    "run_auto_sharding",
    "run_spmd_partitioner",
    "set_hlo_module_input_shardings",
    "set_hlo_module_output_shardings",
    "set_pass_context",
]


def run_spmd_partitioner(module: HloModule, options: CompileOptions) -> None:
    """Partition an annotated module in place.

    With the option "auto_sharding::rewrite_for_grad_acc" the reductions of the results that are gradients
    ("auto_sharding::rewrite_indices") are left out as far as they can be made once a step. A program that needs what
    other meshes compute is cut into phases, which are partitioned one by one. One that no sharding was ever chosen for
    is replicated on all devices: alpa has such a one where a mesh has nothing to do.
    """
    if module.partitioned is not None or module.phases:
        return
    accumulators = (
        get_option("auto_sharding::rewrite_indices") or () if get_option("auto_sharding::rewrite_for_grad_acc") else ()
    )
    if module.mesh is None:
        propagate(module, LogicalMesh((int(options.num_partitions),)), to_outputs=False)
    module.phases = split_at_exchanges(module)
    for phase in module.phases:
        phase.module.partitioned = partition_to_run(phase.module, accumulators if phase is module.phases[-1] else ())
    if not module.phases:
        module.partitioned = partition_to_run(module, accumulators)


def get_alpa_jaxlib_version() -> str:
    """The version of the forked jaxlib that this package stands in for."""
    return "0.2.2"
