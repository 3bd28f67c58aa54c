"""Replacements in `alpa.pipeline_parallel.compile_executable`: where stages are compiled."""

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from alpa_on_jax.in_process import launching as in_process
from alpa_on_jax.replacing import replace


def apply(module: ModuleType) -> None:
    """Let stages that are to run in this process be compiled in this process."""
    original, config = module.shard_each_stage, module.global_config

    @functools.wraps(original)
    def shard_each_stage(jax_all_stages: Sequence[Any], virtual_meshes: Sequence[Any], *rest: Any) -> Any:
        with in_process.compiling(virtual_meshes[0], config):
            return original(jax_all_stages, virtual_meshes, *rest)

    replace(module, shard_each_stage)
