"""The partitioned programs of a plan: the whole one, and the skeletons that are looked at and timed instead of it.

Takes a program and a strategy for each of its blocks; gives programs that can be compiled. Invariant: a program that is
hardly larger than its skeletons is taken whole.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.apply.annotate import annotate
from alpa_cfp.apply.micro_batch_programs import micro_batch_programs
from alpa_cfp.candidates.block_candidates import BlockCandidates
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.extraction.skeleton import Extrapolation
from alpa_cfp.select.extrapolated_profile import ShorterPrograms
from alpa_cfp.select.planned_program import PlannedProgram
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition_to_run
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy

# By how many units the skeletons differ that are timed: the more, the less the noise of their times matters. Where
# times are modelled they have none.
TIMED_UNITS, MODELLED_UNITS = (8, 4), (1,)


@dataclass(frozen=True)
class PlanPrograms:
    """The programs of the plans of one program, by their choices.

    Attributes:
        program: The program.
        mesh: The logical mesh.
        block_candidates: The candidates of each block.
        micro_batches: The number of micro-batches of a step.
        only_whole: Whether plans are timed by their whole programs only.
        units: By how many units the skeletons differ that are timed: the first number that the program is long enough
            for.
    """

    program: AnalysedProgram
    mesh: LogicalMesh
    block_candidates: Sequence[BlockCandidates]
    micro_batches: int
    only_whole: bool
    units: Sequence[int] = TIMED_UNITS

    def strategies(self, choices: Sequence[int]) -> tuple[BlockStrategy, ...]:
        """Returns the strategy of each block."""
        pairs = zip(self.block_candidates, choices, strict=True)
        return tuple(each.candidates[choice].strategy for each, choice in pairs)

    def whole(self, choices: Sequence[int]) -> HloModule:
        """Returns the whole program."""
        return with_plan(self.program.module, self.program.blocks, self.mesh, self.strategies(choices))

    def of_micro_batch(self, planned: HloModule) -> Sequence[HloModule]:
        """Returns what is run for each micro-batch but the first, from the whole program."""
        return micro_batch_programs(planned, self.program) if self.micro_batches > 1 else ()

    def looked_at(self, choices: Sequence[int]) -> PlannedProgram:
        """Returns what is known before the program is compiled: from its skeletons, where these are smaller."""
        found = self.program.skeletons.find(choices)
        if found is None:
            return PlannedProgram.of_whole(self.whole(choices), len(self.block_candidates))
        least, *others = self._skeletons(found, choices)
        return PlannedProgram.of_skeletons(least, others, found.missing, found.blocks)

    def shorter(self, choices: Sequence[int]) -> ShorterPrograms | None:
        """Returns the skeletons that are timed instead of the program; None if it is hardly longer.

        What further micro-batches take is known of whole programs only.
        """
        if self.only_whole or self.micro_batches > 1:
            return None
        for more in self.units:
            found = self.program.skeletons.find(choices, more)
            if found is not None:
                blocks = max(len(each.stands_for) for each in found.all)
                return ShorterPrograms(self._skeletons(found, choices), found.missing, blocks)
        return None

    def _skeletons(self, found: Extrapolation, choices: Sequence[int]) -> tuple[HloModule, ...]:
        plan = self.strategies(choices)
        return tuple(
            with_plan(each.module, each.blocks, self.mesh, [plan[block] for block in each.stands_for])
            for each in found.all
        )


def with_plan(module: HloModule, blocks: Blocks, mesh: LogicalMesh, plan: Sequence[BlockStrategy]) -> HloModule:
    """Returns a copy of `module`, annotated with a strategy for each block and partitioned."""
    planned = dataclasses.replace(module)
    annotate(planned, blocks, mesh, plan)
    planned.partitioned = partition_to_run(planned, predicts=True)
    return planned
