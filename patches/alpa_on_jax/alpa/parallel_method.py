"""Replacements in `alpa.parallel_method`: what is not available says so."""

from types import ModuleType
from typing import Any

from alpa_on_jax import errors
from alpa_on_jax.replacing import replace_in_class


def apply(module: ModuleType) -> None:
    """Let pipelines without a cluster fail with a reason."""
    original = module.PipeshardParallel.compile_executable

    def compile_executable(self: Any, *args: Any) -> Any:
        """As alpa's own, once there is a cluster to run it on."""
        if self.devices is None and module.get_global_virtual_physical_mesh() is None:
            raise errors.PipelineUnavailableError
        return original(self, *args)

    replace_in_class(module.PipeshardParallel, compile_executable)
