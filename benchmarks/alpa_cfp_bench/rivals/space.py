"""The candidates among which a rival chooses, and search problems that say what they cost.

Takes an analysed program and a mesh; gives the planner's own candidates, all or some of them, and tables of seconds or
bytes. Invariant: equal blocks have equal candidates, in the same order.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.candidates.accumulation import step_time_s
from alpa_cfp.candidates.block_candidates import BlockCandidates, find_block_candidates
from alpa_cfp.candidates.candidate import Candidate
from alpa_cfp.costs import CommunicationCosts, Rates, estimated_s
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.profiling import TimeBudget
from alpa_cfp.search import SearchProblem, Variable
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.profile_source import ProfileSource
from alpa_cfp.select.search_problem import Boundaries, find_boundaries, make_problem, resharding_s
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy

Strategies = Callable[[int, ParallelBlock], Sequence[BlockStrategy]]


@dataclass(frozen=True, slots=True)
class RivalPlan:
    """The plan of a rival.

    Attributes:
        mesh: The logical mesh that its strategies are for; of the same devices as the given one.
        strategies: One for each block.
        cost: By the rival's costs: seconds of a step, or bytes that cross a device's link in it.
    """

    mesh: LogicalMesh
    strategies: tuple[BlockStrategy, ...]
    cost: float


@dataclass(frozen=True)
class Space:
    """The candidates of a program on a mesh.

    Attributes:
        program: The program.
        mesh: The logical mesh.
        block_candidates: Those of each block that may be chosen.
    """

    program: AnalysedProgram
    mesh: LogicalMesh
    block_candidates: tuple[BlockCandidates, ...]

    @classmethod
    def of(cls, program: AnalysedProgram, mesh: LogicalMesh, strategies: Strategies | None = None) -> "Space":
        """The candidates of CFP's planner.

        Args:
            program: The program.
            mesh: The logical mesh.
            strategies: Gives those of a block, by its number, that candidates are for; None for all.
        """
        return cls(program, mesh, find_block_candidates(program.subprograms, mesh, strategies=strategies))

    @cached_property
    def boundaries(self) -> Boundaries:
        """The values that cross from block to block."""
        return find_boundaries(self.program.module, self.program.blocks, self.block_candidates)

    @property
    def kinds(self) -> list[int]:
        """For each block the number of the first one that is an equal program."""
        return [each.kind for each in self.block_candidates]

    def only(self, kept: Callable[[ParallelBlock, Sequence[BlockStrategy]], Sequence[bool]]) -> "Space":
        """The space with some of the candidates.

        Args:
            kept: Which of a block's strategies may be chosen, one at least; called for the first of equal blocks.
        """
        found: list[BlockCandidates] = []
        for each in self.block_candidates:
            if each.kind != each.block:
                candidates = found[each.kind].candidates
            else:
                block, strategies = self.program.blocks.blocks[each.block], [c.strategy for c in each.candidates]
                chosen = zip(each.candidates, kept(block, strategies), strict=True)
                candidates = tuple(candidate for candidate, may_be in chosen if may_be)
            found.append(dataclasses.replace(each, candidates=candidates))
        return Space(self.program, self.mesh, tuple(found))

    def plan(self, choices: Sequence[int], cost: float) -> RivalPlan:
        """The plan of these choices among the candidates."""
        pairs = zip(self.block_candidates, choices, strict=True)
        return RivalPlan(self.mesh, tuple(each.candidates[choice].strategy for each, choice in pairs), cost)

    def costs(
        self,
        rates: Rates,
        communication: CommunicationCosts | None,
        profiles: ProfileSource | None,
        micro_batches: int = 1,
        budget: TimeBudget | None = None,
    ) -> CandidateCosts:
        """CFP's costs of the candidates.

        Args:
            rates, communication: Those of the mesh.
            profiles: The source of the times of candidates; None: they are estimated by the rates.
            micro_batches: The number of micro-batches of a step.
            budget: The time after which nothing is measured; None without limit.
        """
        return CandidateCosts(
            self.block_candidates, self.boundaries, rates, profiles,
            micro_batches=micro_batches, communication=communication, budget=budget,
        )  # fmt: skip


def problem_of(costs: CandidateCosts) -> SearchProblem:
    """CFP's search problem, in seconds: the expected times of all candidates, whether they were measured or not."""
    seconds = costs.costs(margin=1.0)
    times_s = [[seconds[number] for number in numbers] for numbers in costs.numbers]
    return make_problem(costs.block_candidates, costs.boundaries, times_s, costs.between_s())


def moving_rates(link_bytes_per_s: float = 1.0) -> Rates:
    """Rates by which nothing takes time but bytes that cross a device's link; by default a byte costs 1."""
    return Rates(flops_per_s=math.inf, bytes_per_s=math.inf, latency_s=0.0, link_bytes_per_s=link_bytes_per_s)


def moving_problem(
    space: Space,
    rates: Rates,
    micro_batches: int = 1,
    counts: Callable[[Candidate], bool] = lambda candidate: True,
) -> SearchProblem:
    """The search problem that counts communication alone, by the latency and the bandwidth of `rates`.

    Args:
        space: The candidates.
        rates: The rates.
        micro_batches: The number of micro-batches of a step.
        counts: Whether what a candidate communicates by itself counts.
    """
    times = [
        [_moving(each, rates, micro_batches) if counts(each) else 0.0 for each in block.candidates]
        for block in space.block_candidates
    ]
    between = [resharding_s(edge, CommunicationCosts(rates)) for edge in space.boundaries.crossings]
    between = [table.scaled(micro_batches) for table in between]
    return make_problem(space.block_candidates, space.boundaries, times, between)


def _moving(candidate: Candidate, rates: Rates, micro_batches: int) -> float:
    """The time of what a candidate communicates in a step; gradients are summed once, not for each micro-batch."""
    moved, once = (
        estimated_s(dataclasses.replace(work, flops=0.0, memory_bytes=0.0), rates)
        for work in (candidate.work, candidate.per_step)
    )
    return step_time_s(once, moved, moved, micro_batches)


def with_times(problem: SearchProblem, times: Sequence[Sequence[float]]) -> SearchProblem:
    """A search problem with more time for each choice of each variable, or inf for one that is excluded."""
    pairs = zip(problem.variables, times, strict=True)
    variables = tuple(Variable(each.name, each.time_s + np.array(more)) for each, more in pairs)
    return SearchProblem(variables, problem.edges)
