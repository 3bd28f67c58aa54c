"""The programs that alpa runs for each micro-batch of a step: the marked stages without the update.

Takes an annotated module in which alpa has marked stages; gives the programs of one micro-batch. Sums of gradients over
devices are deferred to the end of the step, and gradients are accumulated in place. Invariant: the given module does
not change.
"""

from collections.abc import Sequence, Set
from dataclasses import replace

from alpa_cfp.extraction.analysed_program import AnalysedProgram, is_update
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.module.stages import slice_stages
from alpa_cfp.spmd.partition import accumulators_of, partition_to_run


def micro_batch_programs(module: HloModule, program: AnalysedProgram) -> list[HloModule]:
    """Returns the partitioned programs of a micro-batch; none if the update is not marked as a stage of its own.

    Args:
        module: An annotated module.
        program: The analysis of the module.
    """
    found: list[HloModule] = []
    for (name, stage), ends in zip(slice_stages(module), program.stages, strict=True):
        if not is_update(name):
            partition_accumulating(stage, ends.outputs, program.gradients)
            found.append(stage)
    return found if len(found) < len(program.stages) else []


def partition_accumulating(module: HloModule, outputs: Sequence[int], gradients: Set[int]) -> None:
    """Partitions an annotated module, in place, as the program of a micro-batch, without an update.

    Args:
        module: A subprogram.
        outputs: For each result the value of the program that it is.
        gradients: See `AnalysedProgram`. Other sums with a parameter, such as a skip connection, are not accumulators.
    """
    in_place = {
        result: parameter for result, parameter in accumulators_of(module).items() if outputs[result] in gradients
    }
    module.aliases = tuple(in_place.items())
    program = partition_to_run(module, in_place)
    # The remaining partial sums are reduced once a step, and not here.
    module.partitioned = replace(program, unreduced_outputs=((),) * len(program.unreduced_outputs))
