"""The way of a module through CFP: blocks, candidates, costs, search, the best plans timed, the plan written down.

Takes an unoptimised module and what it is planned for; gives a plan, and a copy of the module with the plan written
into it. Invariant: with costs that are estimated, or measured before, the same module gets the same plan.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.apply.annotate import annotate
from alpa_cfp.apply.micro_batch_programs import micro_batch_programs
from alpa_cfp.candidates.block_candidates import distinct, find_block_candidates
from alpa_cfp.costs import Rates
from alpa_cfp.errors import PlanError
from alpa_cfp.evidence.plan_evidence import PlanEvidence
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_cache import PlanCache, PlannedModule
from alpa_cfp.planner.mesh_shapes import all_shapes, nontrivial_sizes
from alpa_cfp.planner.options import PlanOptions
from alpa_cfp.planner.request import PlanRequest
from alpa_cfp.planner.session import Session
from alpa_cfp.search import MemoryBudgetError, SearchProblem, Solution
from alpa_cfp.select.baselines import baselines
from alpa_cfp.select.calibration import calibration_programs, rates_of
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.profile_source import TrackedSource
from alpa_cfp.select.refinement import MeasuredPlan, Refinement
from alpa_cfp.select.search_problem import find_boundaries
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition_to_run
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy

logger = logging.getLogger(__name__)
T = TypeVar("T")

# What part of a search's limits each plain plan gets that one which was not exact is held against.
_QUICK = 0.1


def plan(module: HloModule, request: PlanRequest, options: PlanOptions) -> PlannedModule:
    """The best plan for `module`, and a copy of the module with it.

    Args:
        module: An unoptimised module; not changed.
        request: What it is planned for.
        options: How to plan.

    Raises:
        NoDevicesError: costs are to be measured, and the mesh has no devices here.
        MemoryBudgetError: no plan fits into the memory budget.
        PlanError: the options have a plan, and it is for something else, or cannot be read.
        ReplayError: costs are to be replayed, and the database lacks profiles.
    """
    return plan_whole(AnalysedProgram(module), request, options)


def plan_whole(program: AnalysedProgram, request: PlanRequest, options: PlanOptions) -> PlannedModule:
    """As `plan`, of a program of which more may be known."""
    started = time.perf_counter()
    if options.plan is not None:
        made = use_plan(program, request, options)
    else:
        with Session.open(options) as session:
            made = plan_program(program, request, session, needs_profiles=True)
    seconds = time.perf_counter() - started
    logger.info("CFP: a plan of predicted %.2f ms a step, in %.2f s", made.plan.predicted_s * 1e3, seconds)
    return made


def plan_program(
    program: AnalysedProgram, request: PlanRequest, session: Session, *, needs_profiles: bool
) -> PlannedModule:
    """The best plan on all meshes that are asked for.

    Args:
        program: What is planned.
        request: What for.
        session: With what; its options say how.
        needs_profiles: Whether costs count on one device, too, where there is nothing to choose.
    """
    return best_of_meshes(
        meshes_of(request, session.options),
        lambda mesh: _made(program, mesh, request, session, needs_profiles),
        with_caveats,
        lambda made: made.plan.predicted_s if made.plan.measured_s is None else made.plan.measured_s,
    )


def use_plan(program: AnalysedProgram, request: PlanRequest, options: PlanOptions) -> PlannedModule:
    """The plan that the options have, and a copy of the module with it.

    Raises:
        PlanError: it is for something else, or cannot be read.
    """
    given = options.plan
    assert given is not None
    chosen = given if isinstance(given, Plan) else Plan.load(given)
    meshes = meshes_of(request, options)
    if nontrivial_sizes(chosen.mesh_shape) not in {nontrivial_sizes(mesh.shape) for mesh in meshes}:
        raise PlanError.other_mesh(chosen.mesh_shape, meshes[0].shape)
    if chosen.program != program.digest or len(chosen.strategies) != len(program.blocks.blocks):
        raise PlanError.other_program()
    return _written(program, chosen)


def meshes_of(request: PlanRequest, options: PlanOptions) -> list[LogicalMesh]:
    """The meshes that are planned for."""
    return [request.mesh] if options.logical_mesh_shapes == "given" else all_shapes(request.mesh)


def best_of_meshes(
    meshes: Sequence[LogicalMesh],
    make: Callable[[LogicalMesh], T],
    with_caveats: Callable[[T, Caveats], T],
    expected_s: Callable[[T], float],
) -> T:
    """What is made for each mesh on which there is a plan, the fastest of it.

    Raises:
        MemoryBudgetError: there is none; it is that of the mesh on which least is needed.
    """
    found, errors, without = list[T](), list[MemoryBudgetError](), list[LogicalMesh]()
    for mesh in meshes:
        try:
            found.append(make(mesh))
        except MemoryBudgetError as error:
            errors.append(error)
            without.append(mesh)
    if not found:
        raise min(errors, key=lambda error: error.least_bytes)
    best = min(found, key=expected_s)
    if not errors:
        return best
    caveats = Caveats()
    for mesh in without:
        caveats.note(f"on a {'x'.join(map(str, mesh.shape))} mesh of the same devices no plan fits into the budget")
    return with_caveats(best, caveats)


def with_caveats(made: PlannedModule, caveats: Caveats) -> PlannedModule:
    """The same with more caveats in its plan's account, if it has one."""
    account = made.plan.account
    if account is None:
        return made
    account = dataclasses.replace(account, caveats=(*account.caveats, *caveats.all))
    return dataclasses.replace(made, plan=dataclasses.replace(made.plan, account=account))


def budget_of(request: PlanRequest, options: PlanOptions) -> int | None:
    """What one device may hold; None without limit."""
    return options.memory_budget_bytes or request.memory_budget_bytes


def _made(
    program: AnalysedProgram, mesh: LogicalMesh, request: PlanRequest, session: Session, needs_profiles: bool
) -> PlannedModule:
    """A new plan, or the one that was made before from the same profiles."""
    # On one device there is nothing to choose, and alpa times a candidate stage itself.
    profiled = needs_profiles or mesh.num_devices > 1
    source = session.source(request.devices, mesh) if profiled else None
    if source is None:
        return _written(program, _planned(program, mesh, None, request, session))
    memory = PlanCache(session.database, program.module, cache_key(program, mesh, source, request, session.options))
    made = memory.get()
    if made is None:
        made = _written(program, _planned(program, mesh, source, request, session))
        memory.put(made, source.keys)
    return made


def cache_key(
    program: AnalysedProgram, mesh: LogicalMesh, source: TrackedSource, request: PlanRequest, options: PlanOptions
) -> str:
    """What decides about a plan beside the module, profiles and this code."""
    fields = (options.costs, options.samples, options.refine, options.pruning_margin, options.seed)
    fields += (options.search_limit_s, options.search_memory_bytes)
    limits, budget = program.module.combiner_limits, budget_of(request, options)
    return repr((mesh.shape, source.devices, budget, request.num_micro_batches, limits, fields))


def _written(program: AnalysedProgram, plan: Plan) -> PlannedModule:
    """A plan with a copy of the module into which it is written."""
    annotated = dataclasses.replace(program.module)
    annotate(annotated, program.blocks, LogicalMesh(plan.mesh_shape), plan.strategies)
    return PlannedModule(plan, annotated)


def _planned(
    program: AnalysedProgram,
    mesh: LogicalMesh,
    profiles: TrackedSource | None,
    request: PlanRequest,
    session: Session,
) -> Plan:
    """A new plan."""
    module, blocks, option = program.module, program.blocks, session.options
    budget = budget_of(request, option)
    units = find_block_candidates(program.subprograms, mesh, session.candidates)
    logger.info(
        "CFP: %d ops, %d blocks of %d kinds, %d candidates",
        len(blocks.graph.ops), len(blocks.blocks), len({unit.kind for unit in units}), len(distinct(units)),
    )  # fmt: skip

    def strategies(choices: Sequence[int]) -> tuple[BlockStrategy, ...]:
        return tuple(unit.candidates[choice].strategy for unit, choice in zip(units, choices, strict=True))

    def whole(choices: Sequence[int]) -> HloModule:
        return with_plan(module, blocks, mesh, strategies(choices))

    def further(planned: HloModule) -> Sequence[HloModule]:
        return micro_batch_programs(planned, program) if request.num_micro_batches > 1 else ()

    caveats, limits = Caveats(), (option.search_limit_s, option.search_memory_bytes)

    def plain(problem: SearchProblem) -> dict[str, Solution]:
        return baselines(
            blocks.blocks, units, problem, mesh,
            limit_s=_QUICK * limits[0], memory_bytes=int(_QUICK * limits[1]), caveats=caveats,
        )  # fmt: skip

    rates = Rates() if profiles is None else rates_of(mesh, profiles(calibration_programs(mesh)), caveats)
    boundaries, batches = find_boundaries(module, blocks, units), request.num_micro_batches
    choosing = PlanSearch(
        units, boundaries, rates, profiles, option.pruning_margin, limits[0], batches,
        memory_bytes=limits[1], caveats=caveats, baselines=plain,
    )  # fmt: skip
    if profiles is None or option.refine == 0:
        refined, tried = MeasuredPlan(choosing.best(1, budget)[0]), ()
    else:
        refinement = Refinement(blocks, units, mesh, choosing, profiles, whole, further, option.refine, option.samples)
        refined = refinement.best(budget)
        tried = tuple((refinement.tried | {refined.solution.choices: refined}).values())
    solution = refined.solution
    if profiles is None:
        caveats.note(
            f"nothing is measured: a device is taken to make {rates.flops_per_s:.3g} operations and to write "
            f"{rates.bytes_per_s:.3g} bytes in a second, its link to carry {rates.link_bytes_per_s:.3g} and a "
            f"collective to begin in {rates.latency_s:.3g} s, as of some CPU; such costs only rank plans"
        )
    choosing.add_caveats()
    overhead_s = rates.overhead_s(len(blocks.graph.parameters) + len(blocks.graph.results))
    known = PlanEvidence(
        module, blocks, mesh, units, boundaries, choosing, batches, refined, tried,
        overhead_s=overhead_s,
        programs_measured=0 if profiles is None else len(set(profiles.keys)),
        caveats=caveats.all,
    )  # fmt: skip
    return Plan(
        program.digest,
        mesh.shape,
        strategies(solution.choices),
        solution.time_s + overhead_s,
        solution.memory,
        "estimate" if profiles is None else option.costs,
        measured_s=refined.measured_s,
        needed_bytes=refined.needed_bytes,
        account=known.report(),
    )


def with_plan(module: HloModule, blocks: Blocks, mesh: LogicalMesh, plan: Sequence[BlockStrategy]) -> HloModule:
    """A copy of `module` with a strategy for each block, partitioned."""
    planned = dataclasses.replace(module)
    annotate(planned, blocks, mesh, plan)
    planned.partitioned = partition_to_run(planned, predicts=True)
    return planned
