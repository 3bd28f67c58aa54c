"""Replacements in `alpa.util` of what lowers and compiles programs. `apply` is called for that module.

Takes closed jaxprs and gives back alpa's `WrappedHlo` around our `HloModule`, and small programs on a mesh.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax._src import core

from alpa_on_jax.replacing import replace, replace_in_class
from alpa_on_jax.xla_extension import mlir
from alpa_on_jax.xla_extension.devices import Device
from alpa_on_jax.xla_extension.executable import Client, CompileOptions
from alpa_on_jax.xla_extension.hlo_module import HloModule

_PLATFORMS = {"gpu": "cuda"}


def apply(module: ModuleType) -> None:
    """Replace the compiling functions of `alpa.util`."""
    global_config = module.global_config

    def get_compile_options(
        num_replicas: int,
        num_partitions: int,
        device_assignment: np.ndarray,
        use_spmd_partitioning: bool,
        parameter_is_tupled_arguments: int,
        build_random_seed: int,
        spmd_propagation_to_outputs: bool = False,
    ) -> CompileOptions:
        """What of alpa's options matters here; a mesh compiles for its own devices."""
        return CompileOptions(num_partitions, spmd_propagation_to_outputs, build_random_seed)

    def jaxpr_to_hlo(
        name: str, closed_jaxpr: core.ClosedJaxpr, donated_invars: Sequence[bool], platform: str | None = None
    ) -> Any:
        """Lower a jaxpr to alpa's wrapped module, for the platform of `alpa.global_config.backend` unless told."""
        target = platform or _PLATFORMS.get(global_config.backend) or str(global_config.backend)

        def function(*args: Any) -> Any:
            return core.jaxpr_as_fun(closed_jaxpr)(*args)

        function.__name__ = name  # ops are named after it in HLO texts and profiles
        lowered = jax.jit(function, keep_unused=True).trace(*closed_jaxpr.in_avals).lower(lowering_platforms=(target,))
        # As bytecode the ops keep their locations, by which profilers and HLO texts name them.
        bytecode = mlir.to_bytecode(lowered.compiler_ir("stablehlo"))
        return module.WrappedHlo(HloModule.from_stablehlo(name, bytecode, donated_invars))

    def compile_allocate_zero_buffers(
        backend: Client, num_devices: Any, shapes: Sequence[Sequence[int]], dtypes: Sequence[Any]
    ) -> Any:
        """A program that gives every device zero-filled arrays of the given (local) shapes."""
        return backend.compile_zeros(shapes, dtypes)

    def profile_xla_executable(compiled: Any, backend: Client, local_devices: Sequence[Device]) -> Any:
        """Seconds that a program takes with dummy inputs: three averages over three runs each, or `inf` if it fails."""
        return module.benchmark_func(compiled.runner_with_dummy_inputs(), repeat=3, number=3)

    def enter(self: Any) -> None:
        module.xe.set_pass_context(self.value_dict)

    def leave(self: Any, exc_type: Any, exc_value: Any, exc_traceback: Any) -> None:
        module.xe.clear_pass_context()

    replace(module, get_compile_options, jaxpr_to_hlo, compile_allocate_zero_buffers, profile_xla_executable)
    replace_in_class(module.XlaPassContext, __enter__=enter, __exit__=leave)
