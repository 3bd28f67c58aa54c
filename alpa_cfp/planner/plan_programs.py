"""The partitioned programs of a plan: the whole one, and the skeletons that are looked at and timed instead of it.

Takes a program and a strategy for each of its blocks; gives programs that can be compiled. Invariant: a program that is
hardly larger than its skeletons is taken whole.
"""

import dataclasses
from collections.abc import Sequence

from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.apply.annotate import annotate
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.extraction.skeleton import Extrapolation
from alpa_cfp.select.extrapolated_profile import ShorterPrograms
from alpa_cfp.select.planned_program import PlannedProgram
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition_to_run
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy

# By how many units the skeletons differ that are timed: the more, the less the noise of their times matters.
_MORE_UNITS = (8, 4)


def planned_program(
    program: AnalysedProgram, mesh: LogicalMesh, plan: Sequence[BlockStrategy], choices: Sequence[int]
) -> PlannedProgram:
    """Returns what is known of a plan's program before it is compiled: from its skeletons, where these are smaller.

    Args:
        program: The program.
        mesh: The logical mesh.
        plan: A strategy for each block.
        choices: Their numbers among the candidates: equal for equal blocks with equal strategies.
    """
    found = program.skeletons.find(choices)
    if found is None:
        blocks = program.blocks
        return PlannedProgram.of_whole(with_plan(program.module, blocks, mesh, plan), len(blocks.blocks))
    least, *others = _planned_skeletons(found, mesh, plan)
    return PlannedProgram.of_skeletons(least, others, found.missing, found.blocks)


def shorter_programs(
    program: AnalysedProgram, mesh: LogicalMesh, plan: Sequence[BlockStrategy], choices: Sequence[int]
) -> ShorterPrograms | None:
    """Returns the skeletons of a plan's program that are timed instead of it; None if it is hardly longer.

    Args:
        program: The program.
        mesh: The logical mesh.
        plan: A strategy for each block.
        choices: See `planned_program`.
    """
    for more in _MORE_UNITS:
        found = program.skeletons.find(choices, more)
        if found is not None:
            blocks = max(len(each.stands_for) for each in found.all)
            return ShorterPrograms(_planned_skeletons(found, mesh, plan), found.missing, blocks)
    return None


def _planned_skeletons(found: Extrapolation, mesh: LogicalMesh, plan: Sequence[BlockStrategy]) -> tuple[HloModule, ...]:
    return tuple(
        with_plan(each.module, each.blocks, mesh, [plan[block] for block in each.stands_for]) for each in found.all
    )


def with_plan(module: HloModule, blocks: Blocks, mesh: LogicalMesh, plan: Sequence[BlockStrategy]) -> HloModule:
    """Returns a copy of `module`, annotated with a strategy for each block and partitioned."""
    planned = dataclasses.replace(module)
    annotate(planned, blocks, mesh, plan)
    planned.partitioned = partition_to_run(planned, predicts=True)
    return planned
