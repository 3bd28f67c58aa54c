"""Replacements in `alpa.pipeline_parallel.stage_profiling` of what compiles and times candidate stages in workers.

Takes alpa's candidates; gives what alpa's own functions of these names give. Alpa's end in an error of their own where
a worker finds no plan, wait for CPUs that are not there, hand the rest of the work to a worker that has died, and give
up all candidates of a mesh shape when one fails. Here a candidate that cannot be compiled or timed is left out: alpa's
dynamic programme takes it for infinitely dear.

Invariant: what is in the results is measured as a whole. No worker outlives the construction of stages.
"""

import dataclasses
import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from alpa_on_jax.alpa.pipeline_parallel.stage_run import current
from alpa_on_jax.ray_mesh.cluster import hosts
from alpa_on_jax.ray_mesh.processes.worker_pool import NoAnswer, WorkerPool
from alpa_on_jax.replacing import replace, replace_in_class


def apply(module: ModuleType) -> None:
    """Replace compiling and timing; what a worker does is alpa's own code, but that its errors are told."""
    config, ray, tqdm = module.global_config, module.ray, module.tqdm

    def compile_all(
        stages: Sequence[Any], num_micro_batches: int, default_as_option: Any, profile_results: dict[Any, Any]
    ) -> list[Any]:
        """Compile the candidate stages that are not measured yet.

        Returns:
            Alpa's `CompileOutput` of each; None for one that is measured already, or that could not be compiled.
        """
        results: dict[Any, Any] = profile_results
        wanted = [
            number
            for number, (index, _, _) in enumerate(stages)
            if index not in results or not results[index].fully_profiled()
        ]
        outputs: list[Any] = [None] * len(stages)
        if not wanted:
            return outputs
        tasks = [
            functools.partial(_compile, number, stages[number], default_as_option, num_micro_batches)
            for number in wanted
        ]
        with current() as run:
            pool = run.compile_workers(lambda: _pool("process that compiles", config, config.host_limits.create_s))
            free = int(ray.available_resources().get("CPU", 0)) + len(pool)
            start = functools.partial(_start_compiling, ray, module.CompileWorker, num_cpus=min(free, 1))
            while len(pool) < min(max(free // 2, 1), len(wanted)):
                pool.add(start)
            for task, answer in tqdm.tqdm(pool.do(tasks), total=len(tasks)):
                number = wanted[task]
                if isinstance(answer, NoAnswer):
                    run.lose(stages[number], answer.reason)
                elif answer[1] is None:
                    run.lose(
                        stages[number], "no plan was found for it; the output of the process that compiled says why"
                    )
                else:
                    outputs[number] = answer[1]
                    _note_initial_sizes(module, stages[number], answer[1], results)
        return outputs

    def profile_all(
        stages: Sequence[Any],
        compiled_outputs: Sequence[Any],
        meshes: Sequence[Any],
        num_micro_batches: int,
        auto_stage_option: Any,
        profile_results: dict[Any, Any],
    ) -> dict[Any, Any]:
        """Time compiled candidate stages on meshes of one shape, on several of them at a time (`timed_at_once`).

        Returns:
            `profile_results`, with those that could be timed.
        """
        wanted, tasks = [], []
        for number, (output, (index, stage, _)) in enumerate(zip(compiled_outputs, stages, strict=True)):
            if output is None:
                continue
            for part, program in enumerate(output.acc_grad_module_compile_outputs):
                if not profile_results[index].is_module_profiled(part):
                    wanted.append((number, part))
                    how = stage.module_profile_configs[part]
                    tasks.append(functools.partial(_profile, (number, part), program, output.stage_plan, how))
        # A worker starts its mesh before it answers.
        pool = _pool("process that times stages", config, 2 * config.host_limits.create_s)
        with current() as run:
            try:
                group = module.retrieve_placement_group()
                for mesh in timed_at_once(meshes, is_alone=config.backend == "cpu")[: len(tasks)]:
                    pool.add(functools.partial(_start_profiling, ray, module.ProfileWorker, mesh, group))
                progress = tqdm.tqdm(pool.do(tasks), total=len(tasks))
                for task, answer in progress:
                    number, part = wanted[task]
                    index, stage, _ = stages[number]
                    if isinstance(answer, NoAnswer):
                        run.lose(stages[number], answer.reason)
                        continue
                    output = compiled_outputs[number]
                    _, *measured = answer
                    if not np.all(np.isfinite(measured[0])):
                        run.lose(stages[number], "it could not be run")
                        continue
                    result = module.generate_module_profile_result(
                        measured,
                        stage.module_profile_configs[part],
                        output.acc_grad_module_compile_outputs[part],
                        output.stage_plan.logical_mesh_shape,
                    )
                    progress.write(f"result[{index}, {part}] = {result}")
                    profile_results[index].add_module_profile_result(part, result)
            finally:
                # The hosts of a mesh that has ended end quietly, and their devices are free at once.
                pool.end(_end_mesh, config.host_limits.shutdown_s)
        for index, _, _ in stages:
            if index in profile_results and not profile_results[index].fully_profiled():
                del profile_results[index]
        return profile_results

    replace(module, compile_all, profile_all)
    # Alpa's catches errors and makes the mesh anew. The pool does, which also knows why.
    replace_in_class(module.ProfileWorker, profile=module.ProfileWorker._profile_impl)


def timed_at_once(meshes: Sequence[Any], *, is_alone: bool) -> list[Any]:
    """Those of some virtual meshes on which stages are timed at the same time.

    Args:
        meshes: The meshes.
        is_alone: Whether devices of one machine share its cores, so that one mesh of it is timed at a time.
    """
    chosen: list[Any] = []
    used: set[str] = set()
    for mesh in meshes:
        machines = {host[hosts.ADDRESS] for host in mesh.host_info}
        if not is_alone or not used & machines:
            used |= machines
            chosen.append(mesh)
    return chosen


def _pool(kind: str, config: Any, start_limit_s: float) -> WorkerPool:
    return WorkerPool(kind, config.profile_maximum_retry, start_limit_s, config.profile_timeout)


def _start_compiling(ray: Any, kind: type, num_cpus: int) -> Any:
    return ray.remote(num_cpus=num_cpus)(kind).remote()


def _start_profiling(ray: Any, kind: type, mesh: Any, placement_group: Any) -> Any:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    place = PlacementGroupSchedulingStrategy(placement_group)
    return ray.remote(num_cpus=0)(kind).options(scheduling_strategy=place).remote(mesh)


def _end_mesh(worker: Any) -> Any:
    return worker.__ray_call__.remote(lambda profiler: profiler.mesh.shutdown(forced=True))


def _compile(number: int, stage: Any, default_as_option: Any, num_micro_batches: int, worker: Any) -> Any:
    _, config, (logical_mesh, options) = stage
    option = dataclasses.replace(default_as_option, **options)
    return worker.compile_stage_for_profiling.remote(
        number, config.compile_config, logical_mesh, option, num_micro_batches
    )


def _profile(number: tuple[int, int], program: Any, stage_plan: Any, how: Any, worker: Any) -> Any:
    return worker.profile.remote(number, program, stage_plan, how)


def _note_initial_sizes(module: ModuleType, stage: Any, output: Any, results: dict[Any, Any]) -> None:
    """Make the empty result of a stage, with what only the update needs, which takes memory all the time.

    Alpa's own leaves that out where a stage has one device, though its function for it knows that case.
    """
    index, config, _ = stage
    names: Sequence[str] = ()
    sizes: Sequence[int] = ()
    if config.apply_grad_config is not None:
        names, sizes = module.compute_apply_grad_invar_size(
            output.apply_grad_input_sharding_protos, config.apply_grad_config, output.stage_plan.logical_mesh_shape
        )
    results[index] = module.StageProfileResult(config.n_modules, names, sizes)
