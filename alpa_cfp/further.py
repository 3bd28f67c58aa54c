"""What a step runs for each further micro-batch, as alpa runs it: the marked stages without the update.

Takes a module with a plan, in which alpa has marked stages; gives the programs of one micro-batch. Sums of gradients
over devices are left to the end of the step, and gradients are added up in place. Or takes a graph and the ends of its
stages; gives the ops that no further micro-batch has. Invariant: `further_programs` does not change the module.
"""

from collections.abc import Sequence
from dataclasses import replace

from alpa.pipeline_parallel.apply_grad import APPLY_GRAD_MARKER_SUFFIX

from alpa_cfp.analysis.graph import Graph
from alpa_on_jax.xla_extension.hlo_module import HloModule
from alpa_on_jax.xla_extension.partition import accumulators_of, partition_to_run
from alpa_on_jax.xla_extension.stages import StageEnds, slice_stages


def further_programs(module: HloModule) -> list[HloModule]:
    """The programs that are run for each micro-batch, partitioned; nothing if no update is marked apart from them.

    Args:
        module: An annotated module.
    """
    stages = slice_stages(module)
    each = [stage for name, stage in stages if not name.endswith(APPLY_GRAD_MARKER_SUFFIX)]
    if len(each) == len(stages):
        return []
    for stage in each:
        partition_accumulating(stage)
    return each


def partition_accumulating(module: HloModule) -> None:
    """Partition an annotated module, in place, as what is run for each micro-batch, without an update."""
    in_place = accumulators_of(module)
    module.aliases = tuple(in_place.items())
    program = partition_to_run(module, in_place)
    # What is left to be summed is summed once a step, and not here.
    module.partitioned = replace(program, unreduced_outputs=((),) * len(program.unreduced_outputs))


def ops_of_update(graph: Graph, stages: Sequence[StageEnds]) -> frozenset[int]:
    """The ops that are computed from what goes into the marked update; none where none is marked.

    Args:
        graph: The graph of a program.
        stages: The stages that are marked in it, by the values of the graph.
    """
    late = {value for stage in stages if stage.name.endswith(APPLY_GRAD_MARKER_SUFFIX) for value in stage.inputs}
    found: set[int] = set()
    for op in graph.ops:
        if not late.isdisjoint(op.operands):
            found.add(op.index)
            late.update(op.results)
    return frozenset(found)
