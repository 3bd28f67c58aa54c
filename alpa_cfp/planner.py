"""The way of a module through CFP: blocks, candidates, costs, search, the best plans timed, the plan written down.

Takes an unoptimised module and what alpa says of the mesh; annotates the module in place. Invariant: with costs that
are estimated, or measured before, the same module gets the same plan.
"""

import dataclasses
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from alpa.shard_parallel import auto_sharding

from alpa_cfp.analysis.blocks import Blocks, find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.analysis.segments import digest_of
from alpa_cfp.apply import annotate
from alpa_cfp.candidates import Candidate, Unit, distinct, find_units
from alpa_cfp.costs import Rates, estimated_s
from alpa_cfp.database import Profile, ProfileDatabase
from alpa_cfp.errors import NoDevicesError, PlanError
from alpa_cfp.plan import Plan
from alpa_cfp.problem import CandidateCost, make_problem
from alpa_cfp.profiling import MeasureOptions, calibrate, measure
from alpa_cfp.search import Solution, search
from alpa_cfp.strategies import BlockStrategy
from alpa_on_jax.xla_extension.executable import Client
from alpa_on_jax.xla_extension.hlo_module import HloModule
from alpa_on_jax.xla_extension.partition import partition_to_run
from alpa_on_jax.xla_extension.planner import PlanRequest
from alpa_on_jax.xla_extension.sharding import LogicalMesh

if TYPE_CHECKING:
    from alpa_cfp.option import CFPOption

logger = logging.getLogger(__name__)

Strategies = tuple[BlockStrategy, ...]
# What a candidate that cannot be run costs: it is never chosen where another one can be.
_FAILED_S = float("inf")


def plan_module(module: HloModule, request: PlanRequest, option: "CFPOption") -> Plan:
    """Plan `module` and write the plan into it; the predicted seconds of a step are alpa's objective.

    Raises:
        NoDevicesError: costs are to be measured, and the mesh has no devices here.
        NothingFitsError: no plan fits into the memory budget.
        PlanError: the option has a plan, and it is for something else, or cannot be read.
    """
    started = time.perf_counter()
    mesh = LogicalMesh(tuple(int(size) for size in request.logical_mesh.shape))
    blocks = find_blocks(read_graph(module.bytecode))
    if option.plan is None:
        plan = _made(module, blocks, mesh, request, option)
    else:
        plan = option.plan if isinstance(option.plan, Plan) else Plan.load(option.plan)
        _check(plan, blocks, mesh)
    annotate(module, blocks, mesh, plan.strategies)
    # Where alpa's ILP leaves its objective: the executable has it from there.
    auto_sharding.last_objective = plan.predicted_s
    seconds = time.perf_counter() - started
    logger.info("CFP: a plan of predicted %.2f ms a step, in %.2f s", plan.predicted_s * 1e3, seconds)
    return plan


def _made(module: HloModule, blocks: Blocks, mesh: LogicalMesh, request: PlanRequest, option: "CFPOption") -> Plan:
    """A new plan."""
    units = find_units(module, blocks, mesh)
    logger.info(
        "CFP: %d ops, %d blocks of %d kinds, %d candidates",
        len(blocks.graph.ops), len(blocks.blocks), len({unit.kind for unit in units}), len(distinct(units)),
    )  # fmt: skip
    with ProfileDatabase.open(option.database) as database:
        costs = _Measured(request, mesh, option, database) if option.costs == "measure" else _Estimated()
        problem = make_problem(module, blocks.graph, units, costs.of(units), costs.rates)
        budget = option.memory_budget_bytes or request.memory_budget_bytes
        found = search(problem, budget, best=max(1, option.refine))
        plans = [
            Plan(digest_of(blocks.graph), mesh.shape, _strategies(units, each), each.time_s, each.memory, option.costs)
            for each in found
        ]
        if isinstance(costs, _Measured) and len(plans) > 1:
            fastest = costs.fastest([_with_plan(module, blocks, mesh, plan.strategies) for plan in plans])
            logger.info("CFP: of the %d best plans, number %d is the fastest as a whole", len(plans), fastest + 1)
            return plans[fastest]
    return plans[0]


def _check(plan: Plan, blocks: Blocks, mesh: LogicalMesh) -> None:
    if plan.mesh_shape != mesh.shape:
        raise PlanError.other_mesh(plan.mesh_shape, mesh.shape)
    if plan.program != digest_of(blocks.graph) or len(plan.strategies) != len(blocks.blocks):
        raise PlanError.other_program()


def _strategies(units: Sequence[Unit], solution: Solution) -> Strategies:
    return tuple(unit.candidates[choice].strategy for unit, choice in zip(units, solution.choices, strict=True))


def _with_plan(module: HloModule, blocks: Blocks, mesh: LogicalMesh, plan: Strategies) -> HloModule:
    """A copy of `module` with a plan, partitioned."""
    planned = dataclasses.replace(module)
    annotate(planned, blocks, mesh, plan)
    planned.partitioned = partition_to_run(planned)
    return planned


class _Estimated:
    """Costs by counting."""

    rates = Rates()

    def of(self, units: Sequence[Unit]) -> list[list[CandidateCost]]:
        """The costs of each unit's candidates."""

        def cost(candidate: Candidate) -> CandidateCost:
            assert candidate.module.partitioned is not None
            return CandidateCost(estimated_s(candidate.module.partitioned, self.rates), 0)

        return _for_each_unit(units, [cost(candidate) for candidate in distinct(units)])


class _Measured:
    """Costs by running programs on the mesh."""

    def __init__(self, request: PlanRequest, mesh: LogicalMesh, option: "CFPOption", database: ProfileDatabase):
        devices = getattr(request.logical_mesh.physical_mesh, "devices", None)
        if not devices or any(device is None for device in devices):
            raise NoDevicesError(mesh.shape)
        self._client = Client(_in_mesh_order(request.logical_mesh, devices))
        self._database = database
        self._options = MeasureOptions(option.samples, seed=option.seed, progress=option.progress)
        self.rates = calibrate(mesh, self._client, database, self._options)

    def of(self, units: Sequence[Unit]) -> list[list[CandidateCost]]:
        """The costs of each unit's candidates."""
        profiles = self._measure([candidate.module for candidate in distinct(units)])
        return _for_each_unit(units, [_cost(profile) for profile in profiles])

    def fastest(self, modules: Sequence[HloModule]) -> int:
        """The number of the module that runs fastest."""
        seconds = [_cost(profile).time_s for profile in self._measure(modules)]
        return seconds.index(min(seconds))

    def _measure(self, modules: Sequence[HloModule]) -> list[Profile]:
        return measure(modules, self._client, self._database, self._options)


def _in_mesh_order(logical_mesh: Any, devices: Sequence[Any]) -> list[Any]:
    return [devices[number] for number in logical_mesh.id_mesh.flatten()]


def _cost(profile: Profile) -> CandidateCost:
    if profile.status == "failed":
        return CandidateCost(_FAILED_S, 0)
    return CandidateCost(profile.minimum_s, profile.temporary_bytes or 0)


def _for_each_unit(units: Sequence[Unit], costs: Sequence[CandidateCost]) -> list[list[CandidateCost]]:
    """The costs of `distinct(units)` as a list a unit."""
    of_kind: dict[int, list[CandidateCost]] = {}
    start = 0
    for unit in units:
        if unit.kind == unit.block:
            of_kind[unit.kind] = list(costs[start : start + len(unit.candidates)])
            start += len(unit.candidates)
    return [of_kind[unit.kind] for unit in units]
