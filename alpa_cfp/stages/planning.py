"""Plans of candidate stages of a pipeline whose costs are composed, and why a stage that was chosen has its plan."""

import dataclasses
from dataclasses import dataclass

from alpa_cfp.candidates.block_candidates import find_block_candidates
from alpa_cfp.evidence.plan_evidence import PlanEvidence
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.plan.plan import Plan
from alpa_cfp.planner.options import PlanOptions
from alpa_cfp.planner.planner import best_of_meshes, budget_of, meshes_of
from alpa_cfp.planner.request import PlanRequest
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.refinement import MeasuredPlan
from alpa_cfp.select.search_problem import find_boundaries
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.stages.session import StageSession
from alpa_cfp.stages.stage_costs import Composed, StageEvidence


@dataclass(frozen=True, slots=True)
class ComposedStage:
    """A candidate stage with its plan.

    Attributes:
        plan: The plan.
        composed: What the stage costs under it.
    """

    plan: Plan
    composed: Composed


def compose_stage(program: AnalysedProgram, request: PlanRequest, session: StageSession) -> ComposedStage:
    """The plan of a candidate stage, and its costs, from profiles of segments; the stage is not compiled.

    Raises:
        MemoryBudgetError: no plan fits into the memory budget.
    """
    return best_of_meshes(
        meshes_of(request, session.options),
        lambda mesh: _composed(program, mesh, request, session),
        lambda stage, caveats: stage,  # without an account there is nothing to add to
        lambda stage: stage.plan.predicted_s,
    )


def _composed(
    program: AnalysedProgram, mesh: LogicalMesh, request: PlanRequest, session: StageSession
) -> ComposedStage:
    options, batches = session.options, request.num_micro_batches
    composed = session.composer(request.devices, mesh).compose(
        program,
        session.candidates,
        batches,
        budget_of(request, options),
        options.search_limit_s,
        options.search_memory_bytes,
    )
    solution = composed.solution
    strategies = tuple(
        unit.candidates[choice].strategy for unit, choice in zip(composed.units, solution.choices, strict=True)
    )
    plan = Plan(program.digest, mesh.shape, strategies, solution.time_s, solution.memory, options.costs)
    return ComposedStage(plan, composed)


def explain_stage(
    program: AnalysedProgram, plan: Plan, evidence: StageEvidence, request: PlanRequest, options: PlanOptions
) -> Plan:
    """The plan of a chosen stage, explained by the composed costs that it was planned from; nothing is measured, or
    chosen anew.
    """
    module, blocks, mesh = program.module, program.blocks, LogicalMesh(plan.mesh_shape)
    units, batches = find_block_candidates(program.subprograms, mesh, evidence.candidates), request.num_micro_batches
    boundaries = find_boundaries(module, blocks, units)
    choosing = PlanSearch(units, boundaries, evidence.rates, None, 1.0, options.search_limit_s, batches)
    choices = tuple(
        [candidate.strategy for candidate in unit.candidates].index(strategy)
        for unit, strategy in zip(units, plan.strategies, strict=True)
    )
    refined = MeasuredPlan(choosing.problem.solution(choices))
    known = PlanEvidence(
        module, blocks, mesh, units, boundaries, choosing, batches, refined, (),
        overhead_s=0.0,
        programs_measured=evidence.programs,
        caveats=evidence.caveats,
    )  # fmt: skip
    return dataclasses.replace(plan, account=known.report())
