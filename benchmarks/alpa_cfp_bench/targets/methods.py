"""The methods that are compared on devices that are not here: from a case to each method's program.

Takes a case (model, target, logical mesh); gives the partitioned step by each method. Each planning is a function for a
process of its own (`apart`), with a time limit. Invariant: all methods start from one traced module, and end with a
partitioned one, so that they differ in their plans alone.
"""

import hashlib
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Literal, Self

import alpa
import numpy as np
from alpa.shard_parallel.auto_sharding import LogicalDeviceMesh, run_auto_sharding_pass
from alpa.wrapped_hlo import WrappedHlo

from alpa_cfp import PlanOptions, quantities, target
from alpa_cfp.candidates.block_candidates import find_block_candidates
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.jit.meshes import request_for
from alpa_cfp.jit.tracing import TracedFunction, trace
from alpa_cfp.planner.plan_programs import with_plan
from alpa_cfp.planner.planner import plan_whole
from alpa_cfp.select.baselines import baselines
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.search_problem import find_boundaries
from alpa_cfp.select.target_costs import target_costs
from alpa_cfp.spmd.compile.costs import hlo_module_count_flop_dot_conv_only
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition_to_run
from alpa_cfp.spmd.propagation import propagate
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp_bench.targets.case import Step, TargetCase

# What `alpa.VirtualPhysicalMesh.get_logical_mesh` says of links: those of axis 1 are ten times as fast as of axis 0.
_ALPHA, _BETA = (1, 1), (1, 0.1)


@dataclass(frozen=True, slots=True)
class Traced:
    """A training step, before any method.

    Attributes:
        module: The module, serialized.
        batch_from: The first parameter that is of the batch.
        parameters: How many numbers are trained.
        flops: Of the contractions of the step without rematerialisation: what the model asks for.
        trace_s: Seconds of tracing and lowering.
    """

    module: bytes
    batch_from: int
    parameters: int
    flops: float
    trace_s: float


@dataclass(frozen=True, slots=True)
class Planned:
    """A step that is planned.

    Attributes:
        module: Its module with the partitioned program, serialized.
        planning_s: Seconds of planning and partitioning; of CFP with all that it compiles.
        said: What the method said of it.
    """

    module: bytes
    planning_s: float
    said: str = ""

    @classmethod
    def of(cls, module: HloModule, started: float, said: str = "") -> Self:
        """The module that was planned from `started` (`time.perf_counter`) until now; partitions it if need be."""
        if module.partitioned is None:
            module.partitioned = partition_to_run(module)
        return cls(module.as_serialized_hlo_module_proto(), time.perf_counter() - started, said)


def traced(case: TargetCase) -> Traced:
    """The step of a case."""
    started = time.perf_counter()
    step, found = _traced(case, remat=True)
    trace_s = time.perf_counter() - started
    _, plain = _traced(case, remat=False)
    flops = hlo_module_count_flop_dot_conv_only(plain.module)
    state = sum(leaf.path.startswith("args[0]") for leaf in found.inputs)
    return Traced(found.module.as_serialized_hlo_module_proto(), state, step.parameters, flops, trace_s)


def _traced(case: TargetCase, *, remat: bool) -> tuple[Step, TracedFunction]:
    step = case.step(remat=remat)
    return step, trace(step.function, (step.state, step.batch), {}, 0, target(case.target).chip.kind)


def by_cfp(
    case: TargetCase, step: Traced, database: Path | None, shapes: Literal["given", "all"], memory_budget_bytes: int
) -> Planned:
    """CFP's plan, as `autoshard(costs="compile")` makes it.

    Args:
        case, step: What is planned.
        database: The profiles; None for an empty one.
        shapes: Whether other logical meshes of the same devices are planned for, too (`logical_mesh_shapes`).
        memory_budget_bytes: What a device may hold.

    Raises:
        CFPError: as `autoshard` says.
    """
    wanted = target(case.target)
    with tempfile.TemporaryDirectory() as directory:
        options = PlanOptions(
            costs="compile",
            database=database or Path(directory) / "profiles.sqlite",
            memory_budget_bytes=memory_budget_bytes,
            progress=False,
            logical_mesh_shapes=shapes,
        )
        started = time.perf_counter()
        program = AnalysedProgram(HloModule.from_serialized(step.module))
        made = plan_whole(program, request_for(wanted.mesh(case.mesh)), options)
        planned = with_plan(program.module, program.blocks, LogicalMesh(made.plan.mesh_shape), made.plan.strategies)
        return Planned.of(planned, started, quantities.shape(made.plan.mesh_shape))


def by_hand(case: TargetCase, step: Traced, names: Sequence[str]) -> dict[str, Planned]:
    """The plans that people write by hand, by name; of equal ones the first (`select.baselines`).

    Args:
        case, step: What is planned.
        names: Those that are wanted. There may be none, or an equal one with another name.
    """
    started = time.perf_counter()
    program, mesh = AnalysedProgram(HloModule.from_serialized(step.module)), LogicalMesh(case.mesh)
    candidates = find_block_candidates(program.subprograms, mesh)
    rates, communication = target_costs(target(case.target), mesh)
    boundaries = find_boundaries(program.module, program.blocks, candidates, overlaps=True)
    problem = PlanSearch(CandidateCosts(candidates, boundaries, rates, communication=communication)).problem
    found = baselines(program.blocks.blocks, candidates, problem, mesh)
    shared_s, planned = time.perf_counter() - started, dict[str, Planned]()
    for name in names:
        if name in found:
            began, choices = time.perf_counter(), found[name].choices
            chosen = [each.candidates[choice].strategy for each, choice in zip(candidates, choices, strict=True)]
            module = with_plan(program.module, program.blocks, mesh, chosen)
            planned[name] = Planned.of(module, began - shared_s)
    return planned


def by_ilp(case: TargetCase, step: Traced, mesh: tuple[int, int], mixed: bool, scatter: bool) -> Planned:
    """The plan of Alpa's ILP with a setting.

    Args:
        case, step: What is planned.
        mesh: The shape of the logical mesh of the target's devices.
        mixed: Whether values may be sharded along one axis of all devices, too (`allow_mixed_mesh_shape`).
        scatter: Whether reduce-scatters take the place of all-reduces (`prefer_reduce_scatter`).

    Raises:
        AutoShardingInfeasibleError, BatchDimError: there is no such plan.
    """
    del case
    started = time.perf_counter()
    traced_module = HloModule.from_serialized(step.module)
    wrapped = WrappedHlo(replace(traced_module))
    logical = LogicalDeviceMesh(None, np.arange(prod(mesh)).reshape(mesh), _ALPHA, _BETA)
    option = alpa.AutoShardingOption(prefer_reduce_scatter=scatter, allow_mixed_mesh_shape=mixed)
    run_auto_sharding_pass(wrapped, logical, "single", 1, option)
    words = [quantities.shape(mesh), *["mixed"] * mixed, *["reduce-scatter"] * scatter]
    planned = wrapped.get_module()
    # Alpa's pass sets none; all methods have their collectives combined alike.
    planned.combiner_limits = traced_module.combiner_limits
    return Planned.of(planned, started, " ".join(words))


def by_propagation(case: TargetCase, step: Traced) -> Planned:
    """The step as plain `jax.jit` has it: the batch is split over all devices, the state is whole on each.

    The devices divide the samples.
    """
    started = time.perf_counter()
    module, mesh = HloModule.from_serialized(step.module), LogicalMesh(case.mesh)
    inputs = [ArraySharding.replicated(mesh, len(shape.dims)) for shape in module.shape.parameters]
    for index in range(step.batch_from, len(inputs)):
        inputs[index] = replace(inputs[index], dims=(mesh.axes, *inputs[index].dims[1:]))
    propagate(module, mesh, to_outputs=False, inputs=inputs)
    return Planned.of(module, started)


def program_digest(planned: Planned) -> str:
    """Equal for plans whose programs are the same."""
    program = HloModule.from_serialized(planned.module).partitioned
    assert program is not None
    return hashlib.sha256(program.bytecode).hexdigest()


def ilp_settings(num_devices: int, hosts: int) -> list[tuple[tuple[int, int], bool, bool]]:
    """The settings of Alpa's ILP that are tried: (mesh, mixed, scatter) for `by_ilp`.

    One axis of all devices, and two axes with mixed plans, as Alpa's suites have it: hosts by devices, or within one
    host the squarest mesh; both with reduce-scatters, as these suites have it. Without them, which is Alpa's default,
    one axis.
    """
    rows = hosts if hosts > 1 else max(rows for rows in range(1, num_devices) if rows * rows <= num_devices)
    shapes = dict.fromkeys([(1, num_devices), (rows, num_devices // rows)])
    return [*((shape, min(shape) > 1, True) for shape in shapes), ((1, num_devices), False, False)]
