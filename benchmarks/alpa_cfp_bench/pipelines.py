"""Plans a pipeline by each method, checks one step of each against the serial run, and times all of them side by side.

Takes a case, how it is made a pipeline, methods and places; gives a `PipelineComparison`. Invariants: the methods
differ in who shards and prices stages, and in nothing else; each CFP begins with the profiles that the database had
before the first; no step is timed that gave something else than the serial run.
"""

import contextlib
import copy
import dataclasses
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import alpa
import jax
import numpy as np

from alpa_cfp import CFPOption, CFPPipeshardParallel, Plan
from alpa_cfp.alpa.pipelines import ExtendedPipeshardParallel
from alpa_cfp.database import ProfileDatabase, database_path
from alpa_cfp_bench.case import CFP, COMPOSED, DP_PIPELINE, ILP, ILP_AGAIN, INTER_OP, Case, Effort, Pipeline
from alpa_cfp_bench.checking import difference, run_serially, tolerance
from alpa_cfp_bench.methods import parallelized
from alpa_cfp_bench.places import Place, Places
from alpa_cfp_bench.plan_callback import with_callback
from alpa_cfp_bench.programs import Program
from alpa_cfp_bench.progress import Progress
from alpa_cfp_bench.running import Compared, Measured, num_parameters, num_profiles
from alpa_cfp_bench.stage_choice import StageChoice, warm_up, watched
from alpa_cfp_bench.timing import WARMUP, Samples, interleave, ratio
from alpa_cfp_bench.workloads.models import build

# Those without CFP.
_OF_ALPA = (ILP, ILP_AGAIN, DP_PIPELINE, INTER_OP)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a pipeline.

    Attributes:
        layers: The layers that its mesh has.
        submesh: Hosts, and devices of each.
        logical_mesh: How its devices are laid out for its shardings.
        memory_bytes: What one device needs for the largest of its programs.
        cost_s: What alpa's choice took it to cost for a micro-batch; None if alpa did not choose.
        plan: CFP's plan; None of another method.
    """

    layers: tuple[int, ...]
    submesh: tuple[int, ...]
    logical_mesh: tuple[int, ...]
    memory_bytes: int
    cost_s: float | None
    plan: Plan | None


@dataclass(frozen=True, slots=True)
class PlannedPipeline:
    """A pipeline that is planned, compiled and launched.

    Attributes:
        program: The step with its state.
        planning_s: What planning, compiling and launching it took, in seconds.
        stages: Its stages.
        choice: How alpa chose them.
        profiled: How many programs CFP measured for it; None of another method.
        schedule: The name of its schedule.
    """

    program: Program
    planning_s: float
    stages: tuple[Stage, ...]
    choice: StageChoice
    profiled: int | None
    schedule: str


@dataclass(frozen=True, slots=True)
class PipelineOutcome(Measured):
    """The results of one method.

    Attributes:
        planning_s: The time to plan, compile and launch its pipeline.
        stages: The stages of its pipeline.
        choice: Alpa's choice of the stages.
        profiled: The number of programs that CFP measured for it; None for other methods.
        predicted_s: The step time that alpa's choice predicted; None if alpa did not choose.
        schedule: The name of its schedule.
    """

    planning_s: float
    stages: tuple[Stage, ...]
    choice: StageChoice
    profiled: int | None
    predicted_s: float | None
    schedule: str

    @property
    def programs(self) -> int:
        """How many programs alpa and CFP compiled to choose the stages."""
        return self.choice.programs + self.choice.profiled

    @property
    def memory_bytes(self) -> int:
        """The memory of one device in the stage that needs most."""
        return max(stage.memory_bytes for stage in self.stages)


@dataclass(frozen=True, slots=True)
class PipelineComparison(Compared):
    """The results of all methods on one pipeline.

    Attributes:
        outcomes: One per method, in the order in which the methods were named.
        pipeline: The division of the case into a pipeline.
        are_interleaved: Whether the steps of all methods were timed interleaved, or one method after the other.
        known: The number of profiles that the database had before.
    """

    outcomes: tuple[PipelineOutcome, ...]
    pipeline: Pipeline
    are_interleaved: bool
    known: int

    @property
    def agreement(self) -> "Agreement | None":
        """That of CFP's two ways to price candidate stages; None where there is nothing to be compared."""
        tables = {outcome.method: outcome.choice.table for outcome in self.outcomes}
        composed, measured = tables.get(COMPOSED), tables.get(CFP)
        return None if composed is None or measured is None else agreement(composed, measured)


def steps_of(methods: Sequence[str], effort: Effort, *, interleaved: bool) -> int:
    """How many steps a `Progress` has for `compare`."""
    return 1 + len(methods) + (effort.rounds + WARMUP) * (1 if interleaved else len(methods))


def compare(
    case: Case,
    pipeline: Pipeline,
    methods: Sequence[str],
    effort: Effort,
    option: CFPOption,
    progress: Progress,
    where: Places,
) -> PipelineComparison:
    """Compare methods.

    Args:
        case: What is to run.
        pipeline: How it is made a pipeline.
        methods: Keys of `PIPELINE_METHODS`, each once.
        effort: How often.
        option: How CFP plans.
        progress: Is told what happens, in `steps_of` steps.
        where: Where the pipelines can be.

    Raises:
        CFPError, alpa_on_jax.errors.AlpaOnJaxError: a pipeline cannot be planned or run.
    """
    progress.say("the serial run")
    model = build(case.model, case.size)
    expected = run_serially(model, case.num_micro_batches)
    progress.advance()
    limit = tolerance(model, None if where.are_here else alpa.global_config.backend)
    known = num_profiles(option)
    in_turn = where.are_shared(len(methods))
    if pipeline.stages is None:
        warm_up(*where.shape)
    planned: dict[str, PlannedPipeline] = {}
    differences, samples = {}, dict[str, Samples]()
    with contextlib.ExitStack() as stack:
        # All begin with what was known before the first.
        options = {each: stack.enter_context(_with_own_database(option)) for each in methods if each not in _OF_ALPA}
        for number, method in enumerate(methods):
            progress.say(f"planning {method}")
            place = where.of(number)
            planned[method] = plan_pipeline(case, pipeline, method, options.get(method), place)
            program = planned[method].program
            program()
            differences[method] = difference(program.loss(), program.state, expected)
            progress.advance()
            if in_turn:
                if differences[method].relative <= limit:
                    samples |= _timed({method: program}, effort, progress)
                place.clear()
    if not in_turn:
        right = [method for method in methods if differences[method].relative <= limit]
        samples = _timed({method: planned[method].program for method in right}, effort, progress)
    outcomes = []
    for method, each in planned.items():
        own, ilp = samples.get(method), samples.get(ILP)
        outcomes.append(
            PipelineOutcome(
                method=method,
                difference=differences[method],
                is_right=differences[method].relative <= limit,
                samples=own,
                to_ilp=ratio(own, ilp, seed=effort.seed) if own and ilp and method != ILP and not in_turn else None,
                planning_s=each.planning_s,
                stages=each.stages,
                choice=each.choice,
                profiled=each.profiled,
                predicted_s=each.choice.latency_s(case.num_micro_batches or 1),
                schedule=each.schedule,
            )
        )
    return PipelineComparison(
        case, effort, num_parameters(model), expected.loss, limit, tuple(outcomes), pipeline, not in_turn, known
    )


def plan_pipeline(
    case: Case, pipeline: Pipeline, method: str, option: CFPOption | None, place: Place
) -> PlannedPipeline:
    """Plan a pipeline by a method, compile and launch it.

    Args:
        case: What is to run.
        pipeline: How it is made a pipeline.
        method: A key of `PIPELINE_METHODS`.
        option: How CFP plans; of no use to another method.
        place: Where it is to be; no other pipeline may be there.
    """
    model = build(case.model, case.size)
    state, batch = (jax.tree.map(np.array, each) for each in (model.state, model.batch))
    if method == COMPOSED and option is not None:
        option = dataclasses.replace(option, stage_costs="compose")
    before = 0 if option is None else num_profiles(option)
    plans: list[Plan] = []
    asked = None if option is None else with_callback(option, plans.append)

    def profiled() -> int:
        return 0 if option is None else num_profiles(option) - before

    with place.used() as mesh, watched(profiled) as choice:
        step = parallelized(model, _alpa_method(case, pipeline, method, asked, mesh))
        started = time.perf_counter()
        executable = step.get_executable(state, batch)
        # The hosts have been told to compile it.
        executable.sync()
        planning_s = time.perf_counter() - started
    text, stages = executable.get_hlo_text, _stages(executable, choice, plans)
    program = Program(step, state, batch, lambda: "\n".join(text()), "", lambda results: executable.sync())
    measured = None if option is None else profiled()
    return PlannedPipeline(program, planning_s, stages, choice, measured, executable.schedule.name)


def submesh_of(pipeline: Pipeline, hosts: int, devices: int) -> tuple[int, int] | None:
    """Hosts, and devices of each, of a stage of so many hosts with so many devices.

    Returns:
        None if alpa chooses the stages, or the devices cannot be shared out among them.
    """
    if pipeline.stages is None or hosts * devices % pipeline.stages:
        return None
    count = hosts * devices // pipeline.stages
    if count <= devices:
        return (1, count) if devices % count == 0 else None
    return (count // devices, devices) if count % devices == 0 else None


def _alpa_method(case: Case, pipeline: Pipeline, method: str, option: CFPOption | None, mesh: Any) -> Any:
    fields = {
        "devices": mesh,
        "num_micro_batches": case.num_micro_batches or 1,
        "pipeline_schedule": pipeline.schedule,
        "layer_option": alpa.AutoLayerOption(layer_num=pipeline.layers),
        "stage_option": _stage_option(pipeline, method, mesh),
    }
    if option is not None:
        return CFPPipeshardParallel(**fields, default_auto_sharding_option=option)
    if method == DP_PIPELINE:
        fields["default_auto_sharding_option"] = alpa.AutoShardingOption(force_data_parallel=True)
    return ExtendedPipeshardParallel(**fields)


def _stage_option(pipeline: Pipeline, method: str, mesh: Any) -> Any:
    if pipeline.stages is None and method == INTER_OP:
        one: Any = ((1, 1),)
        return alpa.AutoStageOption(submesh_physical_shape_space="manual", manually_specified_submeshes=one)
    if pipeline.stages is None and method == DP_PIPELINE:
        return alpa.AutoStageOption(submesh_logical_shape_space="data_parallel_only")
    if pipeline.stages is None:
        return alpa.AutoStageOption()
    if pipeline.stages == pipeline.layers:
        return alpa.UniformStageOption(num_stages=pipeline.stages)
    # With several layers a stage, alpa wants to be told the shapes.
    shape: Any = submesh_of(pipeline, *mesh.shape)
    return alpa.UniformStageOption(pipeline.stages, submesh_physical_shape=shape, submesh_logical_shape=shape)


def _stages(executable: Any, choice: StageChoice, plans: Sequence[Plan]) -> tuple[Stage, ...]:
    given = executable.pipeline_plan.manual_stage_option
    count = executable.num_mesh
    sizes = [0] * count
    for number, size in enumerate(executable.get_stage_allocation_size()):
        (mesh,) = executable.schedule.stage_placement(number)
        sizes[mesh] = max(sizes[mesh], size)
    costs = choice.costs_s() or (None,) * count
    runs = given.forward_stage_layer_ids
    return tuple(
        Stage(layers, tuple(submesh), tuple(int(size) for size in logical), size, cost, plan)
        for layers, submesh, logical, size, cost, plan in zip(
            # With several stages on each mesh, they go round the meshes.
            [tuple(layer for run in runs[mesh::count] for layer in run) for mesh in range(count)],
            given.submesh_physical_shapes,
            given.submesh_logical_shapes,
            sizes,
            costs,
            plans or (None,) * count,
            strict=True,
        )
    )


def _timed(programs: dict[str, Program], effort: Effort, progress: Progress) -> dict[str, Samples]:
    if not programs:
        return {}
    progress.say(f"timing {', '.join(programs)}, {effort.rounds} rounds")
    return interleave(programs, effort.rounds, seed=effort.seed, after_round=progress.advance)


@contextlib.contextmanager
def _with_own_database(option: CFPOption) -> Iterator[CFPOption]:
    """A copy of `option` without plans, with a copy of its database; new profiles are merged into that at the end."""
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "profiles.sqlite"
        with ProfileDatabase.open(own) as database:
            if (known := database_path(option.database)).exists():
                database.merge(known)
        try:
            yield dataclasses.replace(copy.copy(option), database=own)
        finally:
            with ProfileDatabase.open(option.database) as kept:
                kept.merge(own)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far the costs of candidate stages that CFP composed agree with those that alpa measured for it.

    Attributes:
        stages: How many stages have both.
        median_ratio: Composed by measured.
        rank_correlation: Spearman's.
    """

    stages: int
    median_ratio: float
    rank_correlation: float


def agreement(composed: np.ndarray, measured: np.ndarray) -> Agreement | None:
    """How far two tables of `StageChoice` agree; None with fewer than two stages in both, which have no order."""
    both = np.isfinite(composed) & np.isfinite(measured) & (measured > 0)
    first, second = composed[both], measured[both]
    if first.size < 2:
        return None
    ranks = [np.argsort(np.argsort(each)) for each in (first, second)]
    correlation: Any = np.corrcoef(np.stack(ranks))
    return Agreement(int(first.size), float(np.median(first / second)), float(correlation[0, 1]))
