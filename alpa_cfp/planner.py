"""The way of a module through CFP: blocks, candidates, costs, search, the best plans timed, the plan written down.

Takes an unoptimised module and what alpa says of the mesh; annotates the module in place, unless it is a candidate
stage whose costs are composed. Invariant: with costs that are estimated, or measured before, the same module gets the
same plan.
"""

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from alpa.shard_parallel import auto_sharding

from alpa_cfp.analysis.blocks import Blocks
from alpa_cfp.apply import annotate
from alpa_cfp.baselines import baselines
from alpa_cfp.calibration import calibration_programs, rates_of
from alpa_cfp.candidates import distinct, find_units
from alpa_cfp.caveats import Caveats
from alpa_cfp.choosing import Choosing
from alpa_cfp.composing import Learnt
from alpa_cfp.costs import Rates
from alpa_cfp.errors import PlanError
from alpa_cfp.explaining.account import Account
from alpa_cfp.explaining.accounting import Planned
from alpa_cfp.further import further_programs
from alpa_cfp.plan import Plan
from alpa_cfp.problem import find_boundaries
from alpa_cfp.program import Program
from alpa_cfp.refining import Refined, Refinement
from alpa_cfp.remembered import Made, Memory
from alpa_cfp.search import NothingFitsError, SearchProblem, Solution
from alpa_cfp.session import Session
from alpa_cfp.sources import Source
from alpa_cfp.strategies import BlockStrategy
from alpa_on_jax.xla_extension.combiner_limits import limits_of_pass_context
from alpa_on_jax.xla_extension.hlo_module import HloModule
from alpa_on_jax.xla_extension.partition import partition_to_run
from alpa_on_jax.xla_extension.planner import PlanRequest
from alpa_on_jax.xla_extension.sharding import LogicalMesh

if TYPE_CHECKING:
    from alpa_cfp.option import CFPOption

logger = logging.getLogger(__name__)

# What part of a search's limits each plain plan gets that one which was not exact is held against.
_QUICK = 0.1


def plan_module(module: HloModule, request: PlanRequest, option: "CFPOption", session: Session | None = None) -> Plan:
    """Plan `module` and write the plan into it, unless the session composes costs of stages; the predicted seconds of a
    step are alpa's objective.

    Args:
        module: An unoptimised module.
        request: What it is planned for.
        option: How to plan.
        session: What it is planned with; None for one of its own.

    Raises:
        NoDevicesError: costs are to be measured, and the mesh has no devices here.
        NothingFitsError: no plan fits into the memory budget.
        PlanError: the option has a plan, and it is for something else, or cannot be read.
        ReplayError: costs are to be replayed, and the database lacks profiles.
    """
    started = time.perf_counter()
    given = _given(request)
    meshes = [given] if option.logical_mesh_shapes == "given" else _shapes(given)
    program = Program(module) if session is None else session.programs.of(module)
    chosen, learnt = option.plan, None
    if chosen is None and session is None and option.stage_plans:
        chosen, learnt = option.stage_plans.get((program.digest, lengths_of(given.shape)), (None, None))
        if chosen is not None and option.refines_stages and given.num_devices > 1:
            # Its candidates are measured. What has not been done for all candidate stages is done for this one.
            chosen, option = None, option.closer()
    if chosen is None:
        with Session(option) if session is None else contextlib.nullcontext(session) as using:
            plans = _plans(program, meshes, request, option, using)
        made = min(plans, key=lambda made: _expected_s(made.plan))
    else:
        plan = chosen if isinstance(chosen, Plan) else Plan.load(chosen)
        _check(plan, program, meshes)
        if learnt is not None:
            plan = dataclasses.replace(plan, account=_account(program, plan, learnt, request, option))
        made = _written(program, plan)
    plan = made.plan
    for each in dataclasses.fields(module):
        setattr(module, each.name, getattr(made.module, each.name))
    # Where alpa's ILP leaves its objective: the executable has it from there.
    auto_sharding.last_objective = plan.predicted_s
    seconds = time.perf_counter() - started
    logger.info("CFP: a plan of predicted %.2f ms a step, in %.2f s", plan.predicted_s * 1e3, seconds)
    return plan


def _given(request: PlanRequest) -> LogicalMesh:
    """The mesh to plan for. A submesh of one axis is the same whether that is the first or the second."""
    shape = tuple(int(size) for size in request.logical_mesh.shape)
    is_submesh = getattr(request.logical_mesh, "virtual_mesh", None) is not None
    return LogicalMesh((1, math.prod(shape)) if is_submesh and max(shape) == math.prod(shape) else shape)


def _shapes(mesh: LogicalMesh) -> list[LogicalMesh]:
    """`mesh` first, then each other way to lay its devices out in one or two axes, the order of devices unchanged.

    Shardings on one of them are shardings on the others too, along parts of their axes.
    """
    count = mesh.num_devices
    others = [(rows, count // rows) for rows in range(1, math.isqrt(count) + 1) if count % rows == 0]
    found = {lengths_of(mesh.shape): mesh}
    for shape in others:
        found.setdefault(lengths_of(shape), LogicalMesh(shape))
    return list(found.values())


def lengths_of(shape: Sequence[int]) -> tuple[int, ...]:
    """The sizes of the axes that devices differ in: meshes that agree in them are the same."""
    return tuple(size for size in shape if size > 1)


def is_finer(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether a mesh has more axes than another one, of which neighbours together are the axes of the other."""
    axes, waiting = lengths_of(shape), list(lengths_of(other))
    size = 1
    for axis in axes:
        size *= axis
        if waiting and size == waiting[0]:
            waiting.pop(0)
            size = 1
    return len(axes) > len(lengths_of(other)) and not waiting and size == 1


def _plans(
    program: Program, meshes: Sequence[LogicalMesh], request: PlanRequest, option: "CFPOption", session: Session
) -> list[Made]:
    """The best plan for each mesh on which there is one.

    Raises:
        NothingFitsError: there is none; it is that of the mesh on which least is needed.
    """
    plans, errors, without = [], [], list[LogicalMesh]()
    for mesh in meshes:
        try:
            plans.append(_made(program, mesh, request, option, session))
        except NothingFitsError as error:
            errors.append(error)
            without.append(mesh)
    if not plans:
        raise min(errors, key=lambda error: error.least_bytes)
    if errors:
        caveats = Caveats()
        for mesh in without:
            caveats.note(f"on a {'x'.join(map(str, mesh.shape))} mesh of the same devices no plan fits into the budget")
        return [_with_caveats(made, caveats) for made in plans]
    return plans


def _with_caveats(made: Made, caveats: Caveats) -> Made:
    account = made.plan.account
    if account is None:
        return made
    account = dataclasses.replace(account, caveats=(*account.caveats, *caveats.all))
    return dataclasses.replace(made, plan=dataclasses.replace(made.plan, account=account))


def _expected_s(plan: Plan) -> float:
    return plan.predicted_s if plan.measured_s is None else plan.measured_s


def _made(program: Program, mesh: LogicalMesh, request: PlanRequest, option: "CFPOption", session: Session) -> Made:
    """A new plan, or the one that was made before from the same profiles."""
    budget = option.memory_budget_bytes or request.memory_budget_bytes
    if session.stages == "compose":
        # As it is: alpa is told what it costs, and where its stages' arguments and results are.
        return Made(_composed(program, mesh, budget, request, option, session), program.module)
    # On one device there is nothing to choose, and alpa times a candidate stage itself.
    needs_profiles = session.stages is None or mesh.num_devices > 1
    source = session.source(request.logical_mesh, mesh) if needs_profiles else None
    if source is None:
        return _written(program, _planned(program, mesh, None, budget, request, option, session))
    memory = Memory(session.database, program.module, _words(mesh, source, budget, request, option))
    made = memory.recall()
    if made is None:
        made = _written(program, _planned(program, mesh, source, budget, request, option, session))
        memory.keep(made, source.keys)
    return made


def _words(mesh: LogicalMesh, source: Source, budget: int | None, request: PlanRequest, option: "CFPOption") -> str:
    """What decides about a plan beside the module, profiles and this code."""
    options = (option.costs, option.samples, option.refine, option.pruning_margin, option.seed)
    options += (option.search_limit_s, option.search_memory_bytes)
    return repr((mesh.shape, source.devices, budget, request.num_micro_batches, limits_of_pass_context(), options))


def _written(program: Program, plan: Plan) -> Made:
    """A plan with a copy of the module into which it is written."""
    annotated = dataclasses.replace(program.module)
    annotate(annotated, program.blocks, LogicalMesh(plan.mesh_shape), plan.strategies)
    return Made(plan, annotated)


def _planned(
    program: Program,
    mesh: LogicalMesh,
    profiles: Source | None,
    budget: int | None,
    request: PlanRequest,
    option: "CFPOption",
    session: Session,
) -> Plan:
    """A new plan."""
    module, blocks = program.module, program.blocks
    units = find_units(program.parts, mesh, session.candidates)
    logger.info(
        "CFP: %d ops, %d blocks of %d kinds, %d candidates",
        len(blocks.graph.ops), len(blocks.blocks), len({unit.kind for unit in units}), len(distinct(units)),
    )  # fmt: skip

    def strategies(choices: Sequence[int]) -> tuple[BlockStrategy, ...]:
        return tuple(unit.candidates[choice].strategy for unit, choice in zip(units, choices, strict=True))

    def whole(choices: Sequence[int]) -> HloModule:
        return with_plan(module, blocks, mesh, strategies(choices))

    def further(planned: HloModule) -> Sequence[HloModule]:
        return further_programs(planned, program) if request.num_micro_batches > 1 else ()

    caveats, limits = Caveats(), (option.search_limit_s, option.search_memory_bytes)

    def plain(problem: SearchProblem) -> dict[str, Solution]:
        return baselines(
            blocks.blocks, units, problem, mesh,
            limit_s=_QUICK * limits[0], memory_bytes=int(_QUICK * limits[1]), caveats=caveats,
        )  # fmt: skip

    rates = Rates() if profiles is None else rates_of(mesh, profiles(calibration_programs(mesh)), caveats)
    boundaries, batches = find_boundaries(module, blocks, units), request.num_micro_batches
    choosing = Choosing(
        units, boundaries, rates, profiles, option.pruning_margin, limits[0], batches,
        memory_bytes=limits[1], caveats=caveats, plain=plain,
    )  # fmt: skip
    if profiles is None or option.refine == 0:
        refined, tried = Refined(choosing.best(1, budget)[0]), ()
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
    known = Planned(
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
        account=known.account(),
    )


def _composed(
    program: Program,
    mesh: LogicalMesh,
    budget: int | None,
    request: PlanRequest,
    option: "CFPOption",
    session: Session,
) -> Plan:
    """The plan of a stage whose costs are composed; they are left in the session."""
    composer, batches = session.composer(request.logical_mesh, mesh), request.num_micro_batches
    composed = composer.compose(
        program, session.candidates, batches, budget, option.search_limit_s, option.search_memory_bytes
    )
    session.composed[mesh.shape], solution = composed, composed.solution
    strategies = tuple(
        unit.candidates[choice].strategy for unit, choice in zip(composed.units, solution.choices, strict=True)
    )
    return Plan(program.digest, mesh.shape, strategies, solution.time_s, solution.memory, option.costs)


def _account(program: Program, plan: Plan, learnt: Learnt, request: PlanRequest, option: "CFPOption") -> Account:
    """Why a chosen stage whose costs were composed has its plan. Nothing is measured, or chosen anew."""
    module, blocks, mesh = program.module, program.blocks, LogicalMesh(plan.mesh_shape)
    units, batches = find_units(program.parts, mesh, learnt.candidates), request.num_micro_batches
    boundaries = find_boundaries(module, blocks, units)
    choosing = Choosing(units, boundaries, learnt.rates, None, 1.0, option.search_limit_s, batches)
    choices = tuple(
        [candidate.strategy for candidate in unit.candidates].index(strategy)
        for unit, strategy in zip(units, plan.strategies, strict=True)
    )
    refined = Refined(choosing.problem.solution(choices))
    known = Planned(
        module, blocks, mesh, units, boundaries, choosing, batches, refined, (),
        overhead_s=0.0,
        programs_measured=learnt.programs,
        caveats=learnt.caveats,
    )  # fmt: skip
    return known.account()


def with_plan(module: HloModule, blocks: Blocks, mesh: LogicalMesh, plan: Sequence[BlockStrategy]) -> HloModule:
    """A copy of `module` with a strategy for each block, partitioned."""
    planned = dataclasses.replace(module)
    annotate(planned, blocks, mesh, plan)
    planned.partitioned = partition_to_run(planned, predicts=True)
    return planned


def _check(plan: Plan, program: Program, meshes: Sequence[LogicalMesh]) -> None:
    if lengths_of(plan.mesh_shape) not in {lengths_of(mesh.shape) for mesh in meshes}:
        raise PlanError.other_mesh(plan.mesh_shape, meshes[0].shape)
    if plan.program != program.digest or len(plan.strategies) != len(program.blocks.blocks):
        raise PlanError.other_program()
