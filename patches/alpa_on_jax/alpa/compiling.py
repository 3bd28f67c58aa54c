"""Replacements in `alpa.util` of what lowers and compiles programs. `apply` is called for that module.

Takes closed jaxprs and gives back alpa's `WrappedHlo` around our `HloModule`, and small programs on a mesh.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax._src import core
from jax.extend.core import ClosedJaxpr

from alpa_cfp.spmd.compile.devices import Device
from alpa_cfp.spmd.compile.executable import Client, CompileOptions
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition_to_run
from alpa_cfp.spmd.shardings.user_axes import declared_meshes
from alpa_on_jax import errors
from alpa_on_jax.jax.interpreters.pxla import ShardingSpec
from alpa_on_jax.replacing import replace, replace_in_class
from alpa_on_jax.xla_extension import small_programs

_ASKS = ("sdy.sharding_constraint", "sdy.manual_computation")
_PLATFORMS = {"gpu": "cuda"}


def _refuse_named_meshes(name: str, parsed: Any) -> None:
    for op in mlir.all_operations(parsed):
        if op.name in _ASKS:
            text = str(op)
            for symbol, axes in declared_meshes(parsed).items():
                if axes and f"@{symbol}" in text:
                    raise errors.NamedMeshError(name, axes)


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
        """The options of alpa's that matter here; a mesh compiles for its own devices."""
        return CompileOptions(num_partitions, spmd_propagation_to_outputs, build_random_seed)

    def jaxpr_to_hlo(
        name: str, closed_jaxpr: ClosedJaxpr, donated_invars: Sequence[bool], platform: str | None = None
    ) -> Any:
        """Lower a jaxpr to alpa's wrapped module, for the platform of `alpa.global_config.backend` unless told.

        Raises:
            errors.NamedMeshError: it asks for shardings over a mesh.
        """
        target = platform or _platform(global_config)

        def function(*args: Any) -> Any:
            return core.jaxpr_as_fun(closed_jaxpr)(*args)

        function.__name__ = name  # ops are named after it in HLO texts and profiles
        lowered = jax.jit(function, keep_unused=True).trace(*closed_jaxpr.in_avals).lower(lowering_platforms=(target,))
        # As bytecode the ops keep their locations, by which profilers and HLO texts name them.
        parsed: Any = lowered.compiler_ir("stablehlo")
        with parsed.context:
            _refuse_named_meshes(name, parsed)
        bytecode = mlir.to_bytecode(parsed)
        return module.WrappedHlo(HloModule.from_stablehlo(name, bytecode, donated_invars))

    def compile_allocate_zero_buffers(
        backend: Client, num_devices: Any, shapes: Sequence[Sequence[int]], dtypes: Sequence[Any]
    ) -> Any:
        """A program that gives every device zero-filled arrays of the given (local) shapes."""
        return backend.compile_zeros(shapes, dtypes)

    def profile_xla_executable(compiled: Any, backend: Client, local_devices: Sequence[Device]) -> Any:
        """Seconds that a program takes with dummy inputs: three averages over three runs each, or `inf` if it fails."""
        return module.benchmark_func(compiled.runner_with_dummy_inputs(), repeat=3, number=3)

    def compile_allgather(
        shape: Sequence[int], dtype: Any, src_spec: ShardingSpec, dst_spec: ShardingSpec, num_devices: int
    ) -> Any:
        """A program that reshards an array from `src_spec` to `dst_spec`."""
        array = jax.ShapeDtypeStruct(tuple(shape), dtype)
        return partitioned(small_programs.allgather(array, src_spec, dst_spec, num_devices, _platform(global_config)))

    def compile_concatenate(
        mesh_shape: Sequence[int], sharding_spec: ShardingSpec, batch_size: int, batch_dim: int, aval: core.ShapedArray
    ) -> Any:
        """A program that joins `batch_size` arrays of one spec along a dim, which have the same spec together."""
        array, num_devices = jax.ShapeDtypeStruct(aval.shape, aval.dtype), int(np.prod(mesh_shape))
        return partitioned(
            small_programs.concatenate(
                array, batch_size, batch_dim, sharding_spec, num_devices, _platform(global_config)
            )
        )

    def compile_dummy_zero_constant() -> Any:
        """A program that takes nothing and gives a zero, for a mesh of any size that has nothing to do."""
        zero = small_programs.zero_constant(_platform(global_config))
        return module.WrappedHlo(zero, module.HloStatus.SHARDING_ANNOTATED)

    def get_index_select_computation(
        sharding_specs: Sequence[ShardingSpec], dim: int, avals: Sequence[core.ShapedArray], index_shape: Any
    ) -> Any:
        """A program that takes of each array, along a dim, what an index says; the result keeps the array's spec."""
        arrays = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        index = jax.ShapeDtypeStruct(tuple(index_shape.dimensions()), index_shape.numpy_dtype())
        selection = small_programs.index_select(arrays, index, dim, sharding_specs, _platform(global_config))
        return module.WrappedHlo(selection, module.HloStatus.SHARDING_ANNOTATED)

    def partitioned(program: HloModule) -> Any:
        program.partitioned = partition_to_run(program)
        return module.WrappedHlo(program, module.HloStatus.SPMD_PARTITIONED)

    def enter(self: Any) -> None:
        module.xe.set_pass_context(self.value_dict)

    def leave(self: Any, exc_type: Any, exc_value: Any, exc_traceback: Any) -> None:
        module.xe.clear_pass_context()

    replace(
        module,
        get_compile_options,
        jaxpr_to_hlo,
        compile_allocate_zero_buffers,
        profile_xla_executable,
        compile_allgather,
        compile_concatenate,
        compile_dummy_zero_constant,
        get_index_select_computation,
    )
    replace_in_class(module.XlaPassContext, __enter__=enter, __exit__=leave)


def _platform(global_config: Any) -> str:
    """JAX's name of the kind of devices that alpa is to use."""
    return _PLATFORMS.get(global_config.backend) or str(global_config.backend)
