"""The candidates among which a plan is chosen: those that may be in the best one, as estimated.

Takes an analysed program, a mesh and what is known of it; gives the candidates of each block. Invariant: as of
`select.unused_axes`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.candidates.block_candidates import BlockCandidates, CandidateCache, Strategies, find_block_candidates
from alpa_cfp.candidates.candidate import Candidate
from alpa_cfp.costs import CommunicationCosts, Rates
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.planner.options import PlanOptions
from alpa_cfp.search import Solution, search
from alpa_cfp.select.baselines import needed_by_hand
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.search_problem import find_boundaries
from alpa_cfp.select.unused_axes import UsedAxes
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, strategies_of

# The share of a search's time limit for each search by estimates, and how close it comes to the best plan.
_SHARE, _CLOSE = 0.05, 0.01


@dataclass(frozen=True)
class PlanCandidates:
    """Makes the candidates of one plan.

    Attributes:
        program: The program.
        mesh: The logical mesh.
        options: How to plan.
        costs: Gives what the mesh computes and communicates in how long; called if it decides anything.
        micro_batches: The number of micro-batches of a step.
        overlaps: Whether collectives that can run beside contractions are told apart.
        cache: The kinds of blocks that were seen before; new ones are added.
        tell: Called with each kind of block and its candidates as soon as there are.
        budget_bytes: The memory that a device may hold; None without limit.
        is_over: Whether the time for planning is over.
    """

    program: AnalysedProgram
    mesh: LogicalMesh
    options: PlanOptions
    costs: Callable[[], tuple[Rates, CommunicationCosts | None]]
    micro_batches: int = 1
    overlaps: bool = False
    cache: CandidateCache = field(default_factory=dict)
    tell: Callable[[ParallelBlock, Sequence[Candidate]], None] = lambda block, candidates: None
    budget_bytes: int | None = None
    is_over: Callable[[], bool] = lambda: False

    def find(self) -> Sequence[BlockCandidates]:
        """Returns the candidates of each block."""
        split_sums = bool(self.options.split_sums)

        def find(strategies: Strategies) -> Sequence[BlockCandidates]:
            subprograms = self.program.subprograms
            return find_block_candidates(
                subprograms, self.mesh, self.cache, self.tell, strategies, split_sums=split_sums
            )

        def strategies(block: ParallelBlock) -> Sequence[BlockStrategy]:
            return strategies_of(block, self.mesh.shape, split_sums=split_sums)

        by_hand = partial(needed_by_hand, self.mesh) if self.options.baselines else lambda block, every, given: ()
        used = UsedAxes(self.mesh.shape, strategies, find, by_hand, self.budget_bytes, self.is_over)
        return used.candidates(self._best, self.options.pruning_margin)

    def _best(self, candidates: Sequence[BlockCandidates]) -> Solution:
        """The best plan by estimates."""
        rates, communication = self.costs()
        boundaries = find_boundaries(self.program.module, self.program.blocks, candidates, overlaps=self.overlaps)
        costs = CandidateCosts(
            candidates, boundaries, rates, micro_batches=self.micro_batches, communication=communication
        )
        return search(
            PlanSearch(costs).problem, None,
            time_limit_s=_SHARE * self.options.search_limit_s,
            memory_limit_bytes=self.options.search_memory_bytes, enough=_CLOSE, thorough=False,
        )  # fmt: skip
