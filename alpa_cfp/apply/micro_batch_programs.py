"""The programs that a step runs for each further micro-batch, as alpa runs it: the marked stages without the update.

Takes a module with a plan, in which alpa has marked stages; gives the programs of one micro-batch. Sums of gradients
over devices are left to the end of the step, and gradients are added up in place. Invariant: the module that is given
does not change.
"""

from collections.abc import Sequence, Set
from dataclasses import replace

from alpa_cfp.extraction.analysed_program import AnalysedProgram, is_update
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.module.stages import slice_stages
from alpa_cfp.spmd.partition import accumulators_of, partition_to_run


def micro_batch_programs(module: HloModule, program: AnalysedProgram) -> list[HloModule]:
    """The programs that are run for each micro-batch, partitioned; nothing if no update is marked apart from them.

    Args:
        module: An annotated module.
        program: What is known of it, whatever it was annotated with.
    """
    each: list[HloModule] = []
    for (name, stage), ends in zip(slice_stages(module), program.stages, strict=True):
        if not is_update(name):
            partition_accumulating(stage, ends.outputs, program.gradients)
            each.append(stage)
    return each if len(each) < len(program.stages) else []


def partition_accumulating(module: HloModule, outputs: Sequence[int], gradients: Set[int]) -> None:
    """Partition an annotated module, in place, as what is run for each micro-batch, without an update.

    Args:
        module: A part of a program.
        outputs: For each result the value of the program that it is.
        gradients: See `AnalysedProgram`. Another parameter to which something is added, as behind a skip connection,
            is needed for each micro-batch.
    """
    in_place = {
        result: parameter for result, parameter in accumulators_of(module).items() if outputs[result] in gradients
    }
    module.aliases = tuple(in_place.items())
    program = partition_to_run(module, in_place)
    # What is left to be summed is summed once a step, and not here.
    module.partitioned = replace(program, unreduced_outputs=((),) * len(program.unreduced_outputs))
