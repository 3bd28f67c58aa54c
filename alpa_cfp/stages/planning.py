"""Plans candidate stages of a pipeline from composed costs, and explains the plans of the stages that are chosen."""

import dataclasses
from dataclasses import dataclass

from alpa_cfp.candidates.block_candidates import find_block_candidates
from alpa_cfp.evidence.plan_evidence import PlanEvidence
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.plan.plan import Plan
from alpa_cfp.planner.new_plan import budget_of
from alpa_cfp.planner.options import PlanOptions
from alpa_cfp.planner.planner import best_of_meshes, meshes_of
from alpa_cfp.planner.request import PlanRequest
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.measured_plan import MeasuredPlan
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.search_problem import find_boundaries
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.stages.session import StageSession
from alpa_cfp.stages.stage_costs import Composed, StageEvidence


@dataclass(frozen=True, slots=True)
class ComposedStage:
    """A candidate stage with its plan.

    Attributes:
        plan: The plan.
        composed: The costs of the stage under the plan.
    """

    plan: Plan
    composed: Composed


def compose_stage(program: AnalysedProgram, request: PlanRequest, session: StageSession) -> ComposedStage:
    """Returns the plan of a candidate stage and its costs, from profiles of segments. The stage is not compiled.

    Raises:
        MemoryBudgetError: no plan fits into the memory budget.
    """
    return best_of_meshes(
        meshes_of(request, session.options),
        lambda mesh: _composed(program, mesh, request, session),
        lambda stage, caveats: stage,  # the plan has no account to add caveats to
        lambda stage: stage.plan.predicted_s,
    )


def _composed(
    program: AnalysedProgram, mesh: LogicalMesh, request: PlanRequest, session: StageSession
) -> ComposedStage:
    options, batches = session.options, request.num_micro_batches
    composed = session.cost_model(request.devices, mesh).compose(
        program,
        session.candidates,
        batches,
        budget_of(request, options),
        options.search_limit_s,
        options.search_memory_bytes,
    )
    solution = composed.solution
    strategies = tuple(
        each.candidates[choice].strategy
        for each, choice in zip(composed.block_candidates, solution.choices, strict=True)
    )
    plan = Plan(program.digest, mesh.shape, strategies, solution.time_s, solution.memory, options.costs)
    return ComposedStage(plan, composed)


def explain_stage(
    program: AnalysedProgram, plan: Plan, evidence: StageEvidence, request: PlanRequest, options: PlanOptions
) -> Plan:
    """Explanation of a stage that was planned from composed costs.

    Nothing is measured or chosen anew.

    Args:
        program: The stage.
        plan: Its plan.
        evidence: What the plan was made from.
        request: The request for the plan.
        options: The options of the plan.

    Returns:
        `plan` with its account.
    """
    module, blocks, mesh = program.module, program.blocks, LogicalMesh(plan.mesh_shape)
    block_candidates, batches = (
        find_block_candidates(program.subprograms, mesh, evidence.candidates),
        request.num_micro_batches,
    )
    boundaries = find_boundaries(module, blocks, block_candidates)
    costs = CandidateCosts(block_candidates, boundaries, evidence.rates, micro_batches=batches)
    plan_search = PlanSearch(costs, limit_s=options.search_limit_s, memory_bytes=options.search_memory_bytes)
    choices = tuple(
        [candidate.strategy for candidate in each.candidates].index(strategy)
        for each, strategy in zip(block_candidates, plan.strategies, strict=True)
    )
    measured = MeasuredPlan(plan_search.problem.solution(choices))
    plan_evidence = PlanEvidence(
        module, blocks, mesh, block_candidates, boundaries, plan_search, batches, measured, (),
        overhead_s=0.0,
        programs_measured=evidence.programs,
        caveats=evidence.caveats,
    )  # fmt: skip
    return dataclasses.replace(plan, account=plan_evidence.report())
