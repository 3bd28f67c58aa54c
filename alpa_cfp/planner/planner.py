"""Plans for a module: on each mesh shape that is asked for a cached plan or a new one, the best of them, annotation.

Takes an unoptimised module and a request; gives a plan, and a copy of the module that is annotated with it. Invariant:
with estimated or recorded costs, the same module gets the same plan.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from alpa_cfp import quantities
from alpa_cfp.apply.annotate import annotate
from alpa_cfp.errors import PlanError
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_cache import PlanCache, PlannedModule
from alpa_cfp.planner.mesh_shapes import all_shapes, nontrivial_sizes, refines
from alpa_cfp.planner.new_plan import budget_of, new_plan
from alpa_cfp.planner.options import PlanOptions
from alpa_cfp.planner.request import PlanRequest
from alpa_cfp.planner.session import Session
from alpa_cfp.profiling import TimeBudget
from alpa_cfp.search import MemoryBudgetError
from alpa_cfp.select.profile_source import TrackedSource
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh

logger = logging.getLogger(__name__)
T = TypeVar("T")


def plan(module: HloModule, request: PlanRequest, options: PlanOptions) -> PlannedModule:
    """Returns the best plan for `module`, and a copy of the module with it.

    Args:
        module: An unoptimised module; not changed.
        request: The mesh and its limits.
        options: How to plan.

    Raises:
        NoDevicesError: costs are to be measured, and the mesh has no devices here.
        MemoryBudgetError: no plan fits into the memory budget.
        PlanError: the plan in the options is for another program or mesh, or cannot be read.
        ReplayError: costs are to be replayed, and the database lacks profiles.
    """
    return plan_whole(AnalysedProgram(module), request, options)


def plan_whole(program: AnalysedProgram, request: PlanRequest, options: PlanOptions) -> PlannedModule:
    """As `plan`, for a program that may be analysed already."""
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
    """Returns the best plan on all meshes of the request.

    Args:
        program: The program.
        request: The mesh and its limits.
        session: The session, with the options.
        needs_profiles: Whether to measure on a mesh of one device, too, where there is one plan only.

    A program that names axes of the mesh itself is planned on that mesh alone.

    Raises:
        MemoryBudgetError: no plan fits into the memory budget.
    """
    meshes = [request.mesh] if program.is_constrained else meshes_of(request, session.options)
    budget = TimeBudget.of(session.options.planning_budget_s)

    def best(session: Session) -> PlannedModule:
        return best_of_meshes(
            meshes,
            lambda mesh: _cached_or_new(
                program, mesh, request, session, budget.share(len(meshes) - meshes.index(mesh)), needs_profiles
            ),
            with_caveats,
            lambda made: made.plan.predicted_s if made.plan.measured_s is None else made.plan.measured_s,
        )

    try:
        return best(session)
    except MemoryBudgetError:
        if session.options.split_sums is not None:
            raise
        logger.info("CFP: no plan fits; planning again with sums over devices that may stay in parts")
        return best(dataclasses.replace(session, options=dataclasses.replace(session.options, split_sums=True)))


def use_plan(program: AnalysedProgram, request: PlanRequest, options: PlanOptions) -> PlannedModule:
    """Returns the plan in the options, and a copy of the module with it.

    Raises:
        PlanError: it is for another program or mesh, or cannot be read.
    """
    chosen = options.read_plan()
    assert chosen is not None
    meshes = _shapes(request, options)
    if nontrivial_sizes(chosen.mesh_shape) not in {nontrivial_sizes(mesh.shape) for mesh in meshes}:
        raise PlanError.other_mesh(chosen.mesh_shape, meshes[0].shape)
    if chosen.program != program.digest or len(chosen.strategies) != len(program.blocks.blocks):
        raise PlanError.other_program()
    return _annotated(program, chosen)


def meshes_of(request: PlanRequest, options: PlanOptions) -> list[LogicalMesh]:
    """Returns the meshes that are planned for.

    A shape that another one refines has no plans of its own: a dim that is split along one axis is split alike along
    the axes that refine it.
    """
    shapes = _shapes(request, options)
    return [mesh for mesh in shapes if not any(refines(other.shape, mesh.shape) for other in shapes)]


def _shapes(request: PlanRequest, options: PlanOptions) -> list[LogicalMesh]:
    """The meshes for which a plan may be."""
    if options.logical_mesh_shapes == "given":
        return [request.mesh]
    return all_shapes(request.mesh, 3 if options.logical_mesh_shapes == "three_axes" else 2)


def best_of_meshes(
    meshes: Sequence[LogicalMesh],
    make: Callable[[LogicalMesh], T],
    with_caveats: Callable[[T, Caveats], T],
    expected_s: Callable[[T], float],
) -> T:
    """Returns the fastest of the results that `make` gives for the meshes on which a plan exists.

    Args:
        meshes: The meshes.
        make: Makes the result for a mesh.
        with_caveats: Adds caveats to a result.
        expected_s: The step time of a result.

    Raises:
        MemoryBudgetError: no plan fits on any mesh. The error is that of the mesh with the least bytes.
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
        caveats.note(f"on {quantities.a_mesh(mesh.shape)} of the same devices no plan fits into the budget")
    return with_caveats(best, caveats)


def with_caveats(made: PlannedModule, caveats: Caveats) -> PlannedModule:
    """Returns `made` with more caveats in its plan's account, if it has one."""
    account = made.plan.account
    if account is None:
        return made
    account = dataclasses.replace(account, caveats=(*account.caveats, *caveats.all))
    return dataclasses.replace(made, plan=dataclasses.replace(made.plan, account=account))


def _cached_or_new(
    program: AnalysedProgram,
    mesh: LogicalMesh,
    request: PlanRequest,
    session: Session,
    budget: TimeBudget,
    needs_profiles: bool,
) -> PlannedModule:
    """Returns the cached plan that was made from the same profiles, or a new one within a time budget."""
    # On one device there is one plan only, and alpa times a candidate stage itself.
    profiled = needs_profiles or mesh.num_devices > 1
    source = session.source(request.devices, mesh, budget) if profiled else None
    if source is None:
        return _annotated(program, new_plan(program, mesh, None, budget, request, session))
    cache = PlanCache(session.database, program.module, cache_key(program, mesh, source, request, session.options))
    made = cache.get()
    if made is None:
        made = _annotated(program, new_plan(program, mesh, source, budget, request, session))
        # With more time the plan may be a better one: the next planning goes on where this one ended.
        if not budget.is_over:
            cache.put(made, source.keys)
    return made


def cache_key(
    program: AnalysedProgram, mesh: LogicalMesh, source: TrackedSource, request: PlanRequest, options: PlanOptions
) -> str:
    """Returns the inputs of planning other than the module, profiles and this code, as a key of the plan cache."""
    fields = (options.costs, options.samples, options.refine, options.baselines, options.pruning_margin, options.seed)
    fields += (options.search_limit_s, options.search_memory_bytes, bool(options.split_sums))
    limits, budget = program.module.combiner_limits, budget_of(request, options)
    return repr((mesh.shape, source.devices, budget, request.num_micro_batches, limits, fields))


def _annotated(program: AnalysedProgram, plan: Plan) -> PlannedModule:
    """Returns a plan with a copy of the module that is annotated with it."""
    annotated = dataclasses.replace(program.module)
    annotate(annotated, program.blocks, LogicalMesh(plan.mesh_shape), plan.strategies)
    return PlannedModule(plan, annotated)
