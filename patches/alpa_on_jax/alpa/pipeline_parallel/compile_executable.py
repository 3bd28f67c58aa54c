"""Replacements in `alpa.pipeline_parallel.compile_executable`: where stages are sharded; what is cut into layers; which
arrays may be donated."""

import functools
import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from alpa_on_jax import errors
from alpa_on_jax.alpa.global_env import temporarily
from alpa_on_jax.alpa.pipeline_parallel.late_inlining import inlined
from alpa_on_jax.in_process.place import is_here
from alpa_on_jax.replacing import replace
from alpa_on_jax.xla_extension.planner import Planner

logger = logging.getLogger(__name__)


def apply(module: ModuleType) -> None:
    """Let stages be sharded in this process where alpa's compile workers cannot (see `_must_be_here`), and calls be
    inlined before a program is cut (see `late_inlining`); look at what is donated before minutes are spent."""
    original, config = module.shard_each_stage, module.global_config
    split, slice_apply_grad = module.split_and_process_layers, module.slice_apply_grad_for_stage_construction

    @functools.wraps(split)
    def split_and_process_layers(closed_jaxpr: Any, full_batch_closed_jaxpr: Any, *rest: Any) -> Any:
        full_batch = None if full_batch_closed_jaxpr is None else inlined(full_batch_closed_jaxpr)
        return split(inlined(closed_jaxpr), full_batch, *rest)

    @functools.wraps(slice_apply_grad)
    def slice_apply_grad_for_stage_construction(*args: Any) -> Any:
        arguments, results, donated = args[3:6]
        _check_donated(arguments, results, donated)
        return slice_apply_grad(*args)

    @functools.wraps(original)
    def shard_each_stage(jax_all_stages: Sequence[Any], virtual_meshes: Sequence[Any], *rest: Any) -> Any:
        anywhere = config.pipeline_distributed_compile and not _must_be_here(virtual_meshes, rest)
        with temporarily(config, pipeline_distributed_compile=anywhere):
            return original(jax_all_stages, virtual_meshes, *rest)

    replace(module, shard_each_stage, split_and_process_layers, slice_apply_grad_for_stage_construction)


def _check_donated(arguments: Sequence[Any], results: Sequence[Any], donated: Sequence[bool]) -> None:
    """Hold that each donated array can be replaced by the result with its number, to which alpa gives its buffer.

    Raises:
        errors.DonationError: one cannot.
    """
    for number, (argument, is_donated) in enumerate(zip(arguments, donated, strict=True)):
        if not is_donated:
            continue
        result = results[number].aval if number < len(results) else None
        if result is None or (result.shape, result.dtype) != (argument.aval.shape, argument.aval.dtype):
            given = "none" if result is None else result.str_short()
            raise errors.DonationError(number, argument.aval.str_short(), given)


def _must_be_here(virtual_meshes: Sequence[Any], rest: Sequence[Any]) -> bool:
    """Whether the stages are to run in this process, or their planner measures: a compile worker has no devices.

    Nor are there compile workers where Ray has not a free CPU for each: Alpa would wait for the last of them in vain.
    """
    if is_here(virtual_meshes[0]) or any(isinstance(each, Planner) for each in rest):
        return True
    import ray

    free = int(ray.available_resources().get("CPU", 0))
    if free < len(virtual_meshes):
        logger.info("%d stages are sharded in this process: Ray has %d CPUs free", len(virtual_meshes), free)
    return free < len(virtual_meshes)
