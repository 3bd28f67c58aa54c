"""What a step runs for each further micro-batch, as alpa runs it: the marked stages without the update.

Takes a module with a plan, in which alpa has marked stages; gives the programs of one micro-batch. Sums of gradients
over devices are left to the end of the step, and gradients are added up in place. Invariant: the module is not changed.
"""

from dataclasses import replace

from alpa.pipeline_parallel.apply_grad import APPLY_GRAD_MARKER_SUFFIX

from alpa_on_jax.xla_extension.hlo_module import HloModule
from alpa_on_jax.xla_extension.partition import accumulators_of, partition_to_run
from alpa_on_jax.xla_extension.stages import slice_stages


def further_programs(module: HloModule) -> list[HloModule]:
    """The programs that are run for each micro-batch, partitioned; nothing if no update is marked apart from them.

    Args:
        module: An annotated module.
    """
    stages = slice_stages(module)
    each = [stage for name, stage in stages if not name.endswith(APPLY_GRAD_MARKER_SUFFIX)]
    return [_accumulating(stage) for stage in each] if len(each) < len(stages) else []


def _accumulating(stage: HloModule) -> HloModule:
    in_place = accumulators_of(stage)
    stage.aliases = tuple(in_place.items())
    program = partition_to_run(stage, in_place)
    # What is left to be summed is summed once a step, and not here.
    stage.partitioned = replace(program, unreduced_outputs=((),) * len(program.unreduced_outputs))
    return stage
