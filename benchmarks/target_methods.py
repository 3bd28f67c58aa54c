"""The methods that are compared on devices that are not here: from a published case to each method's program.

Takes a case (model, target, logical mesh); gives the partitioned step by each method, and what the target's compiler
and the model of its seconds say of it. Each planning and each compiling is a function for a process of its own
(`apart`), with a time limit. Invariant: all methods start from one traced module, and are compiled and modelled by one
function, so that they differ in their plans alone.
"""

import contextlib
import hashlib
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import prod
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar
from unittest import mock

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
from alpa_cfp.targets import modelled_program as modelling
from alpa_cfp.targets.target import Target
from alpa_cfp.targets.topology import Compiled, devices_of
from alpa_cfp_bench.workloads import published
from alpa_cfp_bench.workloads.published_programs import Program, program_of
from benchmarks.target_rankings import SCENARIOS, scaled_s

T = TypeVar("T")

# What `alpa.VirtualPhysicalMesh.get_logical_mesh` says of links: those of axis 1 are ten times as fast as of axis 0.
_ALPHA, _BETA = (1, 1), (1, 0.1)
# Beside what a model computes in: the type in which its products are made, whose peak the utilisation is of.
_PRODUCTS_IN = {"gpt": "f16", "moe": "f16", "llama": "bf16", "wide_resnet": "tf32"}


@dataclass(frozen=True, slots=True)
class Case:
    """A model at its published size, on a target.

    Attributes:
        model: The case of `workloads.published`, with the target's mesh.
        target: The target's name.
        mesh: The shape of the logical mesh.
    """

    model: published.Case
    target: str
    mesh: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> Self:
        """The case that a text names: "gpt/1.3B@h100:1x8", or with another mesh "gpt/1.3B@h100:1x8@2x4".

        Raises:
            ValueError: there is no such model, or the text has no target.
            TargetError: there is no such target, or mesh of it.
        """
        name, *places = text.split("@")
        suite, _, size = name.partition("/")
        found = published.SUITES.get(suite, {}).get(size)
        if found is None:
            known = ", ".join(f"{suite}/{size}" for suite, cases in published.SUITES.items() for size in cases)
            raise ValueError(f"there is no model {name}; there are {known}")
        if len(places) not in (1, 2):
            raise ValueError(f"{text} is no model@target, nor model@target@mesh")
        wanted = target(places[0])
        mesh = tuple(int(size) for size in places[1].split("x")) if len(places) > 1 else usual_mesh(wanted)
        wanted.mesh(mesh)
        return cls(replace(found, mesh=(wanted.hosts, wanted.devices_per_host)), wanted.name, mesh)

    def __str__(self) -> str:
        return f"{self.model.suite} {self.model.name} on {self.target} as {quantities.shape(self.mesh)}"


def usual_mesh(wanted: Target) -> tuple[int, ...]:
    """The mesh that one thinks of first: hosts by devices of GPUs, the torus of TPUs if it has two dims."""
    sizes = (wanted.hosts, wanted.devices_per_host) if wanted.torus is None else wanted.torus
    shape = tuple(size for size in sizes if size > 1)
    return shape if len(shape) in (1, 2) else (prod(shape),)


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


@dataclass(frozen=True, slots=True)
class Modelled:
    """A step as the target's compiler leaves it, and its seconds by the model.

    Attributes:
        step_s: Of a step.
        computing_s, communicating_s, hidden_s, copies_s: See `targets.timeline.Timeline`.
        memory_bytes: What a device needs, by the compiler.
        collectives: How many collectives run in a step.
        compile_s: Of the compiler, on this machine.
        scenarios_s: Seconds of a step in each of `target_rankings.SCENARIOS`.
    """

    step_s: float
    computing_s: float
    communicating_s: float
    hidden_s: float
    copies_s: float
    memory_bytes: int
    collectives: int
    compile_s: float
    scenarios_s: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As a benchmark's row has it."""
        return asdict(self)


def traced(case: Case) -> Traced:
    """The step of a case."""
    started = time.perf_counter()
    program, found = _traced(case, remat=True)
    trace_s = time.perf_counter() - started
    _, plain = _traced(case, remat=False)
    flops = hlo_module_count_flop_dot_conv_only(plain.module)
    state = sum(leaf.path.startswith("args[0]") for leaf in found.inputs)
    return Traced(found.module.as_serialized_hlo_module_proto(), state, program.parameters, flops, trace_s)


def _traced(case: Case, *, remat: bool) -> tuple[Program, TracedFunction]:
    program = program_of(case.model, remat=remat)
    kind = target(case.target).chip.kind
    return program, trace(program.step, (program.state, program.batch), {}, 0, kind)


def by_cfp(case: Case, step: Traced, database: Path | None, shapes: Literal["given", "all"]) -> Planned:
    """CFP's plan, as `autoshard(costs="compile")` makes it.

    Args:
        case, step: What is planned.
        database: The profiles; None for an empty one.
        shapes: Whether other logical meshes of the same devices are planned for, too (`logical_mesh_shapes`).

    Raises:
        CFPError: as `autoshard` says.
    """
    wanted = target(case.target)
    with tempfile.TemporaryDirectory() as directory:
        options = PlanOptions(
            costs="compile",
            database=database or Path(directory) / "profiles.sqlite",
            memory_budget_bytes=wanted.chip.memory_bytes,
            progress=False,
            logical_mesh_shapes=shapes,
        )
        started = time.perf_counter()
        program = AnalysedProgram(HloModule.from_serialized(step.module))
        made = plan_whole(program, request_for(wanted.mesh(case.mesh)), options)
        planned = with_plan(program.module, program.blocks, LogicalMesh(made.plan.mesh_shape), made.plan.strategies)
        return Planned.of(planned, started, quantities.shape(made.plan.mesh_shape))


def by_hand(case: Case, step: Traced, names: Sequence[str]) -> dict[str, Planned]:
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


def by_ilp(case: Case, step: Traced, mesh: tuple[int, int], mixed: bool, scatter: bool) -> Planned:
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
    wrapped = WrappedHlo(HloModule.from_serialized(step.module))
    logical = LogicalDeviceMesh(None, np.arange(prod(mesh)).reshape(mesh), _ALPHA, _BETA)
    option = alpa.AutoShardingOption(prefer_reduce_scatter=scatter, allow_mixed_mesh_shape=mixed)
    run_auto_sharding_pass(wrapped, logical, "single", 1, option)
    words = [quantities.shape(mesh), *["mixed"] * mixed, *["reduce-scatter"] * scatter]
    return Planned.of(wrapped.get_module(), started, " ".join(words))


def by_propagation(case: Case, step: Traced) -> Planned:
    """The step as plain `jax.jit` has it: the batch is split over all devices, the state is whole on each."""
    started = time.perf_counter()
    module, mesh = HloModule.from_serialized(step.module), LogicalMesh(case.mesh)
    inputs = [ArraySharding.replicated(mesh, len(shape.dims)) for shape in module.shape.parameters]
    for index in range(step.batch_from, len(inputs)):
        inputs[index] = replace(inputs[index], dims=(mesh.axes, *inputs[index].dims[1:]))
    propagate(module, mesh, to_outputs=False, inputs=inputs)
    return Planned.of(module, started)


def modelled(serialized: bytes, target_name: str) -> Modelled:
    """Compile a planned step for a target, and model it, in each scenario, too.

    Raises:
        jax.errors.JaxRuntimeError: it cannot be compiled.
        CFPError: see `targets.modelled_program`.
    """
    module, wanted = HloModule.from_serialized(serialized), target(target_name)
    compiled = list[Compiled]()

    def compile_for(*args: Any, **options: Any) -> Compiled:
        compiled.append(original(*args, **options))
        return compiled[-1]

    original = modelling.compile_for
    # A modelled program does not keep its text, which other scenarios are walked with.
    with mock.patch.object(modelling, "compile_for", compile_for):
        program = modelling.modelled_program(module, wanted, devices_of(wanted))
    line, whole = program.timeline, compiled[0]
    scenarios_s = {name: scaled_s(compiled, wanted, factors) for name, factors in SCENARIOS.items()}
    return Modelled(
        program.step_s, line.computing_s, line.communicating_s, line.hidden_s, line.copies_s, whole.total_bytes,
        len(program.collectives), sum(each.seconds for each in compiled), scenarios_s,
    )  # fmt: skip


def model_flops_utilisation(case: Case, flops: float, step_s: float) -> float:
    """The part of the devices' peak that the step would be without rematerialisation."""
    wanted = target(case.target)
    rates = wanted.chip.flops_per_s
    # TPUs make float32 products from those of bfloat16.
    peak = rates.get(_PRODUCTS_IN[case.model.suite], rates["bf16"])
    return flops / (step_s * wanted.num_devices * peak)


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


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What came of a function in a process of its own: its value, or why there is none."""

    value: T | None
    failure: str = ""


def apart(function: Callable[..., T], *args: Any, limit_s: float) -> Outcome[T]:
    """Call a function in a process of its own.

    Args:
        function: Of a module that can be imported.
        args: Its arguments.
        limit_s: After so many seconds the process, with those that it has started, is ended.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    # A module is more than a pipe holds, and `start` would wait forever for a process that ended before it read all.
    with tempfile.NamedTemporaryFile() as call:
        pickle.dump((function, args), call)
        call.flush()
        process = context.Process(target=_answer, args=(theirs, call.name))
        process.start()
        theirs.close()
        try:
            if not ours.poll(limit_s):
                return Outcome(None, f"not done after {limit_s:g} s")
            return ours.recv()
        except EOFError:
            process.join()
            return Outcome(None, f"its process ended with exit code {process.exitcode}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.kill()
            process.join()
            ours.close()


def _answer(connection: Connection, call: str) -> None:
    os.setsid()  # what it starts, such as CBC, can be ended with it
    try:
        function, args = pickle.loads(Path(call).read_bytes())
        outcome = Outcome(function(*args))
    except Exception as error:  # noqa: BLE001 - whatever it is, it costs this cell alone
        outcome = Outcome(None, f"{type(error).__name__}: {error}")
    connection.send(outcome)
