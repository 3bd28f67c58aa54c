"""Replacements in `alpa.pipeline_parallel.stage_profiling`: who plans candidate stages, and what they cost.

Alpa enumerates the candidate stages, and chooses among them, by itself. For each submesh shape it has
`distributed_profile_on_mesh` compile and time them. Here an option that is a `StagePlanner` is asked first, in the
driver: its plans go along with the stages to alpa's compile workers, or it says what the stages cost, and none of them
is compiled. Invariant: without such an option everything is alpa's own, but for its workers
(`stage_workers`) and what is read from files (`stage_results`).
"""

import copy
import dataclasses
import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from alpa_cfp.spmd.shardings.sharding import tuple_proto
from alpa_on_jax import errors
from alpa_on_jax.alpa.pipeline_parallel import stage_results, stage_run, stage_workers
from alpa_on_jax.replacing import replace
from alpa_on_jax.xla_extension.planner import PlannedStage, StagePlanner, StagePlanning

# (index, config, (logical mesh, fields of the auto-sharding option)), as alpa has a candidate stage.
Stage = tuple[Any, Any, tuple[Any, dict[str, Any]]]


def apply(module: ModuleType) -> None:
    """Ask a planner of stages before stages are compiled; replace what starts and asks alpa's workers."""
    stage_workers.apply(module)
    stage_results.apply(module)
    original, timers = module.distributed_profile_on_mesh, module.timers

    @functools.wraps(original)
    def distributed_profile_on_mesh(
        stages: Sequence[Stage],
        meshes: Sequence[Any],
        num_micro_batches: int,
        default_as_option: Any,
        auto_stage_option: Any,
        profile_results: dict[Any, Any],
    ) -> dict[Any, Any]:
        equal: list[tuple[Stage, Stage]] = []
        if isinstance(default_as_option, StagePlanner):
            timers(PLANNING).start()
            unknown = [stage for stage in stages if not _is_known(stage, profile_results)]
            stages, equal = _plan(module, unknown, num_micro_batches, default_as_option, profile_results)
            timers(PLANNING).stop()
        results = original(stages, meshes, num_micro_batches, default_as_option, auto_stage_option, profile_results)
        _as_their_equals(equal, results)
        return results

    generate = module.generate_stage_info

    @functools.wraps(generate)
    def generate_stage_info(layers: Any, indices: Any, *others: Any) -> Any:
        """As alpa's own; what is one candidate on submeshes of several shapes is put together and lowered once."""
        with stage_run.current() as run:
            # All else that it takes is given by the layers and these.
            key = (id(layers), tuple(map(tuple, indices)))
            if key not in run.configs:
                # With the layers, whose identity no others may get.
                run.configs[key] = layers, generate(layers, indices, *others)
            return run.configs[key][1]

    replace(module, distributed_profile_on_mesh, generate_stage_info)


# Alpa's timer of what planners of stages do.
PLANNING = "stage-construction-planning"


def _is_known(stage: Stage, results: dict[Any, Any]) -> bool:
    return stage[0] in results and results[stage[0]].fully_profiled()


def _plan(
    module: ModuleType, stages: Sequence[Stage], num_micro_batches: int, option: Any, results: dict[Any, Any]
) -> tuple[list[Stage], list[tuple[Stage, Stage]]]:
    """Plan stages on one shape of submesh; put what they cost into `results`.

    Returns:
        Those that alpa is to time, with the option's fields of each; and those that are neither planned nor timed
        because another is the same to the planner, each with that other.
    """
    to_be_timed: dict[Any, Stage] = {}
    equal: list[tuple[Stage, Stage]] = []
    with stage_run.current() as run, option.planning_stages(run.known) as planning:
        first: dict[Any, Stage] = {}
        # The largest first: a planner learns most from it.
        for stage in sorted(_not_covered(stages, planning), key=_size, reverse=True):
            index, config, (logical_mesh, fields) = stage
            own = dataclasses.replace(planning, **fields)
            same = first.setdefault((id(config), own.plan_key(logical_mesh, fields)), stage)
            if same is not stage:
                equal.append((stage, same))
                continue
            planned = _planned(module, stage, num_micro_batches, own)
            if isinstance(planned, errors.StagePlanError):
                run.lose(stage, str(planned))
            elif planned.result is None:
                to_be_timed[index] = (index, config, (logical_mesh, {**fields, **planned.fields}))
            else:
                results[index] = planned.result
    return [to_be_timed[index] for index, *_ in stages if index in to_be_timed], equal


def _not_covered(stages: Sequence[Stage], planning: StagePlanning) -> list[Stage]:
    """Those for which no other candidate, of the same layers, is at least as good."""
    meshes_of: dict[int, list[Any]] = {}
    for _, config, (logical_mesh, _) in stages:
        meshes_of.setdefault(id(config), []).append(logical_mesh)
    return [
        stage for stage in stages if not any(planning.dominates(mesh, stage[2][0]) for mesh in meshes_of[id(stage[1])])
    ]


def _as_their_equals(equal: Sequence[tuple[Stage, Stage]], results: dict[Any, Any]) -> None:
    """Give stages the results of others that they are the same as, or the reason why these have none."""
    with stage_run.current() as run:
        for stage, same in equal:
            if same[0] in results:
                results[stage[0]] = copy.deepcopy(results[same[0]])
            elif (reason := run.lost.get(stage_run.name_of(same))) is not None:
                run.lose(stage, reason)


@dataclasses.dataclass(frozen=True, slots=True)
class _Planned:
    """What becomes of a candidate stage.

    Attributes:
        fields: Those of the option that are others for it.
        result: Alpa's `StageProfileResult`, where it need not be timed.
    """

    fields: dict[str, Any]
    result: Any


def _planned(
    module: ModuleType, stage: Stage, num_micro_batches: int, planning: Any
) -> "_Planned | errors.StagePlanError":
    """Plan a stage; or why it has no plan."""
    _, config, (logical_mesh, _) = stage
    hlo = config.compile_config.hlo
    try:
        *_, stage_plan = module.run_auto_sharding_pass(
            type(hlo)(dataclasses.replace(hlo.get_module())),
            logical_mesh,
            "stages",
            num_micro_batches,
            planning,
            memory_budget_per_device=None,
        )
    except errors.StagePlanError as error:
        return error
    planned = planning.planned_stage(config.n_modules)
    if planned.costs is None:
        return _Planned(planned.fields, None)
    return _Planned(planned.fields, _composed(module, config, planned, stage_plan.logical_mesh_shape))


def _size(stage: Stage) -> int:
    return len(stage[1].compile_config.hlo.get_module().bytecode)


def _composed(module: ModuleType, config: Any, planned: PlannedStage, mesh_shape: Sequence[int]) -> Any:
    """What alpa would have found out about a stage, from its shardings and what a planner says that it costs.

    Args:
        module: Alpa's.
        config: Alpa's `StageConfig`.
        planned: What the planner says.
        mesh_shape: The logical mesh.
    """
    shardings: list[tuple[Any, Any]] = []
    for name in config.compile_config.names:
        ends = planned.ends[name]
        inputs = [sharding.to_proto().SerializeToString() for sharding in ends.inputs]
        shardings.append((inputs, tuple_proto(ends.outputs).SerializeToString()))
    initial = ((), ())
    if config.apply_grad_config is not None:
        initial = module.compute_apply_grad_invar_size(shardings[-1][0], config.apply_grad_config, mesh_shape)
    result = module.StageProfileResult(config.n_modules, *initial)
    assert planned.costs is not None
    for number, (cost, profile_config) in enumerate(zip(planned.costs, config.module_profile_configs, strict=True)):
        compiled = module.ModuleCompileOutput(None, *shardings[number])
        raw = (cost.time_s, 0, planned.available_bytes)
        of_phase = module.generate_module_profile_result(raw, profile_config, compiled, mesh_shape)
        # Without a peak, what alpa takes for temporary is less than nothing by what arguments and results take.
        peak = cost.temporary_bytes - of_phase.temp_buffer_size
        of_phase = of_phase._replace(peak_memory=peak, temp_buffer_size=cost.temporary_bytes)
        result.add_module_profile_result(number, of_phase)
    return result
