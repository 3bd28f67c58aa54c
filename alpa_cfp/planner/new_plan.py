"""A new plan for a program on one mesh: candidates, costs, search, timing of the best plans, and the plan's account.

Takes an analysed program, a mesh and a source of profiles; gives a plan. Without a source, costs are estimates, and no
program is made. Invariant: the same profiles give the same plan.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.candidates.block_candidates import BlockCandidates, distinct
from alpa_cfp.candidates.candidate import Candidate
from alpa_cfp.costs import CommunicationCosts, Rates
from alpa_cfp.evidence.plan_evidence import PlanEvidence
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.plan.plan import Plan
from alpa_cfp.planner.options import PlanOptions
from alpa_cfp.planner.plan_candidates import PlanCandidates
from alpa_cfp.planner.plan_programs import MODELLED_UNITS, TIMED_UNITS, PlanPrograms
from alpa_cfp.planner.request import PlanRequest, TargetDevices
from alpa_cfp.planner.session import Session
from alpa_cfp.profiling import TimeBudget
from alpa_cfp.search import SearchProblem, Solution
from alpa_cfp.select.alike import first_measured
from alpa_cfp.select.baselines import baselines
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.measured_plan import MeasuredPlan
from alpa_cfp.select.mesh_costs import MeshPrograms, mesh_costs, mesh_programs
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.profile_source import TrackedSource
from alpa_cfp.select.refinement import Refinement
from alpa_cfp.select.search_problem import Boundaries, find_boundaries
from alpa_cfp.select.target_costs import target_costs
from alpa_cfp.select.trial_rounds import TrialRounds
from alpa_cfp.select.whole_plan import best_whole
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.targets.target import Target

logger = logging.getLogger(__name__)

# The share of a search's limits for each baseline with which the plan of an approximate search is compared.
_BASELINE_SHARE = 0.1


def budget_of(request: PlanRequest, options: PlanOptions) -> int | None:
    """Returns the memory that one device may hold; None without limit."""
    return options.memory_budget_bytes or request.memory_budget_bytes


def new_plan(
    program: AnalysedProgram,
    mesh: LogicalMesh,
    profiles: TrackedSource | None,
    time_budget: TimeBudget,
    request: PlanRequest,
    session: Session,
) -> Plan:
    """Makes a new plan.

    Args:
        program: The program.
        mesh: The logical mesh.
        profiles: Measures programs, has them modelled, or has recorded profiles; None: costs are estimates.
        time_budget: The time after which nothing is measured.
        request: The devices, their memory and the micro-batches.
        session: The options, and what plans of this planning share.

    Raises:
        MemoryBudgetError: no plan fits into the memory budget.
    """
    return _Planning(program, mesh, profiles, time_budget, request, session).plan()


@dataclass(frozen=True)
class _Planning:
    """The steps of making a plan; see `new_plan`."""

    program: AnalysedProgram
    mesh: LogicalMesh
    profiles: TrackedSource | None
    time_budget: TimeBudget
    request: PlanRequest
    session: Session
    caveats: Caveats = field(default_factory=Caveats, init=False)

    @property
    def options(self) -> PlanOptions:
        return self.session.options

    @property
    def target(self) -> Target | None:
        """What the plan is for, if it is not here."""
        return self.request.devices.target if isinstance(self.request.devices, TargetDevices) else None

    def plan(self) -> Plan:
        """All steps."""
        module, blocks = self.program.module, self.program.blocks
        if self.profiles is not None and self.target is None:
            self._expect([each for programs in self._mesh_programs for each in programs])
        candidates = self._candidates()
        logger.info(
            "CFP: %d ops, %d blocks of %d kinds, %d candidates",
            len(blocks.graph.ops),
            len(blocks.blocks),
            len({each.kind for each in candidates}),
            len(distinct(candidates)),
        )
        budget, batches = budget_of(self.request, self.options), self.request.num_micro_batches
        # A plan that is timed has to fit into the budget; of those that are modelled only the chosen one is compiled
        # whole.
        programs = PlanPrograms(
            self.program, self.mesh, candidates, batches, budget is not None and self.target is None,
            TIMED_UNITS if self.target is None else MODELLED_UNITS,
        )  # fmt: skip
        rates, communication = self._rates
        boundaries = find_boundaries(module, blocks, candidates, overlaps=self.target is not None)
        search = self._search(candidates, boundaries, rates, communication, programs)
        measured, tried = self._chosen(candidates, search, programs, budget)
        self._note_where_costs_are_from(rates)
        search.add_caveats()
        overhead_s = rates.overhead_s(len(blocks.graph.parameters) + len(blocks.graph.results))
        evidence = PlanEvidence(
            module, blocks, self.mesh, candidates, boundaries, search, batches, measured, tried,
            overhead_s=overhead_s,
            programs_measured=0 if self.profiles is None else len(set(self.profiles.keys)),
            caveats=self.caveats.all,
            known_by="measured" if self.target is None else "modelled",
        )  # fmt: skip
        return Plan(
            self.program.digest,
            self.mesh.shape,
            programs.strategies(measured.solution.choices),
            measured.solution.time_s + overhead_s,
            measured.solution.memory,
            self._costs_source,
            measured_s=measured.measured_s,
            needed_bytes=measured.needed_bytes,
            account=evidence.report(),
        )

    @cached_property
    def _mesh_programs(self) -> MeshPrograms:
        return mesh_programs(self.mesh)

    def _expect(self, programs: Sequence[HloModule]) -> None:
        if not self.time_budget.is_over:
            self.session.expect(self.request.devices, self.mesh, programs)

    def _candidates(self) -> Sequence[BlockCandidates]:
        """The candidates of all blocks; those of each kind that are measured first are prepared meanwhile."""

        def tell(block: ParallelBlock, candidates: Sequence[Candidate]) -> None:
            if self.profiles is not None and self.options.costs == "measure":
                self._expect(first_measured(block, candidates, Rates()))

        return PlanCandidates(
            self.program, self.mesh, self.options, lambda: self._rates, self.request.num_micro_batches,
            self.target is not None, self.session.candidates, tell, budget_of(self.request, self.options),
            lambda: self.time_budget.is_over,
        ).find()  # fmt: skip

    @cached_property
    def _rates(self) -> tuple[Rates, CommunicationCosts | None]:
        """What the mesh computes, and what its collectives take, if that is known."""
        if self.target is not None:
            return target_costs(self.target, self.mesh)
        if self.profiles is None:
            return Rates(), None
        return mesh_costs(self.mesh, self.profiles, self.caveats, self._mesh_programs)

    def _search(
        self,
        candidates: Sequence[BlockCandidates],
        boundaries: Boundaries,
        rates: Rates,
        communication: CommunicationCosts | None,
        programs: PlanPrograms,
    ) -> PlanSearch:
        limit_s, memory_bytes = self.options.search_limit_s, self.options.search_memory_bytes

        def baseline_plans(problem: SearchProblem) -> dict[str, Solution]:
            return baselines(
                self.program.blocks.blocks, candidates, problem, self.mesh,
                limit_s=_BASELINE_SHARE * limit_s, memory_bytes=int(_BASELINE_SHARE * memory_bytes),
                caveats=self.caveats, thorough=False,
            )  # fmt: skip

        costs = CandidateCosts(
            candidates, boundaries, rates, self.profiles, self.options.pruning_margin,
            micro_batches=self.request.num_micro_batches, communication=communication, budget=self.time_budget,
        )  # fmt: skip
        return PlanSearch(
            costs, limit_s=limit_s, memory_bytes=memory_bytes, caveats=self.caveats, baselines=baseline_plans,
            planned=None if self.profiles is None else programs.looked_at,
        )  # fmt: skip

    def _chosen(
        self, candidates: Sequence[BlockCandidates], search: PlanSearch, programs: PlanPrograms, budget: int | None
    ) -> tuple[MeasuredPlan, Sequence[MeasuredPlan]]:
        """The plan that is taken, and all that were tried whole."""
        options = self.options
        if self.profiles is None or options.refine == 0:
            return MeasuredPlan(search.best(1, budget)[0]), ()
        rounds = TrialRounds(
            self.program.blocks, candidates, self.mesh, search, self.profiles, programs.whole, programs.of_micro_batch,
            options.refine, options.samples, options.baselines, programs.shorter, self._expect,
        )  # fmt: skip
        refinement = Refinement(rounds)
        if self.target is None:
            measured = refinement.best(budget)
        else:
            measured = best_whole(refinement, budget, self.profiles.timeline)
        return measured, tuple((refinement.tried | {measured.solution.choices: measured}).values())

    @property
    def _costs_source(self) -> str:
        if self.profiles is None:
            return "estimate"
        # A replay of what was modelled is modelled, too.
        return self.options.costs if self.target is None else "compile"

    def _note_where_costs_are_from(self, rates: Rates) -> None:
        target = self.target
        if target is not None and self.profiles is not None:
            self.caveats.note(
                f"nothing has run: programs were compiled for {target.name}, and what they take there is modelled from "
                "published figures of its chip and links"
            )
        if self.profiles is None:
            whose = "some CPU" if target is None else f"{target.name} by published figures"
            self.caveats.note(
                f"nothing is measured: a device is taken to make {rates.flops_per_s:.3g} operations and to write "
                f"{rates.bytes_per_s:.3g} bytes in a second, its link to carry {rates.link_bytes_per_s:.3g} and a "
                f"collective to begin in {rates.latency_s:.3g} s, as of {whose}; such costs only rank plans"
            )
