"""FlexFlow and Tofu in the place of Alpa's ILP: options that Alpa's methods take.

Takes Alpa's module and mesh; annotates the module with the rival's plan. With its own costs a rival chooses among the
strategies that its paper has; with ours, among all of CFP's candidates. Invariant: from a module on it is the same as
for CFP: candidates, profiles, annotation.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from alpa import AutoShardingOption
from alpa.shard_parallel import auto_sharding

from alpa_cfp.alpa.option import plan_request
from alpa_cfp.apply.annotate import annotate
from alpa_cfp.costs import CommunicationCosts, Rates
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.planner.options import PlanOptions
from alpa_cfp.planner.planner import meshes_of
from alpa_cfp.planner.request import PlanRequest
from alpa_cfp.planner.session import Session
from alpa_cfp.profiling import TimeBudget
from alpa_cfp.search import SearchProblem, Solution
from alpa_cfp.select.baselines import DATA_PARALLEL, baselines
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.mesh_costs import mesh_costs
from alpa_cfp.select.profile_source import ProfileSource
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp_bench.rivals.flexflow import best_of_chains, in_soap, random_plans, simulated_problem
from alpa_cfp_bench.rivals.space import RivalPlan, Space, moving_problem, moving_rates, problem_of
from alpa_cfp_bench.rivals.tofu import Limits, all_is_split, any_split, bisected
from alpa_on_jax.xla_extension import planner as seam

Whose = Literal["own", "ours"]
_RANDOM_STARTS = 4


@dataclass(kw_only=True)
class RivalOption(AutoShardingOption, ABC):
    """A rival's options; the fields of `AutoShardingOption` are ignored.

    Attributes:
        options: What CFP would plan with: the source of costs, the database, limits of searches, the seed. A memory
            budget is not kept: the rivals have none.
        whose: Whose costs and strategies: the rival's own, or CFP's.
    """

    options: PlanOptions = field(default_factory=PlanOptions)
    whose: Whose = "own"

    def annotate_module(self, module: HloModule, request: seam.PlanRequest) -> None:
        """Plan `module` and write the plan into it, for alpa's auto-sharding pass.

        The cost of the plan, in seconds or bytes, becomes alpa's objective.
        """
        program = AnalysedProgram(module)
        with Session.open(self.options) as session:
            plan = self.plan(program, plan_request(request), session)
        annotate(module, program.blocks, plan.mesh, plan.strategies)
        # Alpa's ILP leaves its objective here, and the executable reads it.
        auto_sharding.last_objective = plan.cost

    @abstractmethod
    def plan(self, program: AnalysedProgram, request: PlanRequest, session: Session) -> RivalPlan:
        """The rival's plan.

        Args:
            program: The program.
            request: The mesh, its devices and the micro-batches.
            session: The session, with the options.
        """


@dataclass(kw_only=True)
class FlexFlowOption(RivalOption):
    """FlexFlow (arXiv 1807.05358): `flexflow.py` on each mesh that CFP plans for; the plan of least cost."""

    def plan(self, program: AnalysedProgram, request: PlanRequest, session: Session) -> RivalPlan:
        """See `RivalOption`."""
        meshes = meshes_of(request, self.options)
        return min((self._on(mesh, program, request, session) for mesh in meshes), key=lambda plan: plan.cost)

    def _on(self, mesh: LogicalMesh, program: AnalysedProgram, request: PlanRequest, session: Session) -> RivalPlan:
        budget = TimeBudget.of(self.options.planning_budget_s)
        profiles = session.source(request.devices, mesh, budget)
        rates, communication = costs_of(mesh, profiles)
        space = Space.of(program, mesh)
        if self.whose == "own":
            space = space.only(in_soap)
        costs = space.costs(rates, communication, profiles, request.num_micro_batches, budget)

        def problem() -> SearchProblem:
            return problem_of(costs) if self.whose == "ours" else simulated_problem(space, costs, rates)

        found = best_measured(costs, problem, lambda each: self._best(space, each))
        return space.plan(found.choices, found.time_s)

    def _best(self, space: Space, problem: SearchProblem) -> Solution:
        """The best plan of the chains that start from data parallelism and from random plans (section 6.2)."""
        blocks, seed = space.program.blocks.blocks, self.options.seed
        hand = baselines(blocks, space.block_candidates, problem, space.mesh, names=(DATA_PARALLEL,))
        starts = [*(plan.choices for plan in hand.values()), *random_plans(problem, _RANDOM_STARTS, seed)]
        return best_of_chains(problem, starts, seed)


def best_measured(
    costs: CandidateCosts, problem: Callable[[], SearchProblem], best: Callable[[SearchProblem], Solution]
) -> Solution:
    """The best plan, of candidates that were all measured: those of a plan that are not are measured, and it is found
    again.

    Args:
        costs: The costs of candidates, which get better.
        problem: Gives the search problem by them.
        best: Finds the best plan of a search problem.
    """
    while True:
        found = best(problem())
        wanted = costs.unmeasured(found.choices)
        if not wanted or costs.budget.is_over:
            return found
        costs.measure(sorted(wanted))


@dataclass(kw_only=True)
class TofuOption(RivalOption):
    """Tofu (arXiv 1807.08887): `tofu.py` on the given mesh, of which each axis is divided.

    Its own costs are bytes. With ours, each step has the seconds that CFP estimates by the rates and collectives of the
    whole mesh: parts of a step's mesh are no meshes on which candidates were measured.
    """

    def plan(self, program: AnalysedProgram, request: PlanRequest, session: Session) -> RivalPlan:
        """See `RivalOption`."""
        micro_batches = request.num_micro_batches

        def moved_bytes(space: Space) -> SearchProblem:
            return moving_problem(space, moving_rates(), micro_batches)

        limits = Limits(self.options.search_limit_s, self.options.search_memory_bytes)
        if self.whose == "own":
            return bisected(program, request.mesh, moved_bytes, all_is_split, limits)
        rates, communication = costs_of(request.mesh, session.source(request.devices, request.mesh))

        def estimated(space: Space) -> SearchProblem:
            return problem_of(space.costs(rates, communication, None, micro_batches))

        return bisected(program, request.mesh, estimated, any_split, limits)


def costs_of(mesh: LogicalMesh, profiles: ProfileSource | None) -> tuple[Rates, CommunicationCosts | None]:
    """Returns the costs of a mesh as calibrated; where nothing is measured the rates of some CPU."""
    return (Rates(), None) if profiles is None else mesh_costs(mesh, profiles)
