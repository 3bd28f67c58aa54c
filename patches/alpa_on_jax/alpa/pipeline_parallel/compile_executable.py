"""Replacements in `alpa.pipeline_parallel.compile_executable`: where stages are sharded; what is cut into layers."""

import functools
import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from alpa_on_jax.alpa.global_env import temporarily
from alpa_on_jax.alpa.pipeline_parallel.late_inlining import inlined
from alpa_on_jax.in_process.launching import is_here
from alpa_on_jax.replacing import replace
from alpa_on_jax.xla_extension.planner import Planner

logger = logging.getLogger(__name__)


def apply(module: ModuleType) -> None:
    """Let stages be sharded in this process where alpa's compile workers cannot (see `_must_be_here`), and calls be
    inlined before a program is cut (see `late_inlining`)."""
    original, config = module.shard_each_stage, module.global_config
    split = module.split_and_process_layers

    @functools.wraps(split)
    def split_and_process_layers(closed_jaxpr: Any, full_batch_closed_jaxpr: Any, *rest: Any) -> Any:
        full_batch = None if full_batch_closed_jaxpr is None else inlined(full_batch_closed_jaxpr)
        return split(inlined(closed_jaxpr), full_batch, *rest)

    @functools.wraps(original)
    def shard_each_stage(jax_all_stages: Sequence[Any], virtual_meshes: Sequence[Any], *rest: Any) -> Any:
        anywhere = config.pipeline_distributed_compile and not _must_be_here(virtual_meshes, rest)
        with temporarily(config, pipeline_distributed_compile=anywhere):
            return original(jax_all_stages, virtual_meshes, *rest)

    replace(module, shard_each_stage, split_and_process_layers)


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
