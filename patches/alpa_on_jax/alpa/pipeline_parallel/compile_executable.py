"""Replacements in `alpa.pipeline_parallel.compile_executable`: where stages are sharded."""

import functools
import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from alpa_on_jax.alpa.global_env import temporarily
from alpa_on_jax.in_process.launching import is_here
from alpa_on_jax.replacing import replace
from alpa_on_jax.xla_extension.planner import Planner

logger = logging.getLogger(__name__)


def apply(module: ModuleType) -> None:
    """Let stages be sharded in this process where alpa's compile workers cannot: see `_must_be_here`."""
    original, config = module.shard_each_stage, module.global_config

    @functools.wraps(original)
    def shard_each_stage(jax_all_stages: Sequence[Any], virtual_meshes: Sequence[Any], *rest: Any) -> Any:
        anywhere = config.pipeline_distributed_compile and not _must_be_here(virtual_meshes, rest)
        with temporarily(config, pipeline_distributed_compile=anywhere):
            return original(jax_all_stages, virtual_meshes, *rest)

    replace(module, shard_each_stage)


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
