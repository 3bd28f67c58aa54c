"""Replacements in `alpa.pipeline_parallel.computation`: running one pipeline stage on one device of this process."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax

from alpa_on_jax.replacing import replace_in_class
from alpa_on_jax.xla_extension.executable import Client, MeshExecutable
from alpa_on_jax.xla_extension.propagation import propagate
from alpa_on_jax.xla_extension.sharding import LogicalMesh


def apply(module: ModuleType) -> None:
    """Replace how `LocalPipelineParallel` compiles a stage."""

    def get_runnable(self: Any, mesh: Any = None) -> Callable[..., list[jax.Array]]:
        """A function that runs the stage on the first device; stages that were compiled already are not again."""
        compiled = self.__dict__.get("_compiled")
        if compiled is None:
            device = jax.local_devices()[0]
            program = self.hlo.get_module()
            propagate(program, LogicalMesh((1, 1)), to_outputs=True)
            compiled = (device, MeshExecutable(Client([device], module.global_config.runtime_random_seed), program))
            self.__dict__["_compiled"] = compiled
        device, executable = compiled

        def run(*args: Any) -> list[jax.Array]:
            return executable.execute_sharded_on_local_devices(jax.device_put(list(args), device))

        return run

    replace_in_class(module.XlaPipelineComputation, get_runnable)
