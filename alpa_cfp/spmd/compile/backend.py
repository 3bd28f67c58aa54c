"""The one place that compiles and runs programs through JAX's private client interface.

Tested with jax 0.10.2, 0.11.2 and 0.12.0.1: `jax._src.compiler.get_compile_options`, `Client.compile_and_load`,
`LoadedExecutable.execute_sharded`, `ExecuteResults.consume_with_handlers`, `pxla.global_aval_to_result_handler`,
`ResultHandler.wrap`, `jax_array.ArrayImpl`, `jaxlib._hlo.HloPrintOptions`, `jax._src.lax.linalg.initialize_lapack`,
`jaxlib.gpu_solver.initialize_hybrid_kernels`.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src import array as jax_array
from jax._src import compiler, core
from jax._src.interpreters import pxla
from jax._src.lax import linalg
from jax._src.lib import xla_client as xc
from jax.sharding import Sharding
from jaxlib import (
    _hlo,  # pyright: ignore[reportAttributeAccessIssue]
    gpu_solver,
)

from alpa_cfp.spmd.compile.devices import Devices
from alpa_cfp.spmd.compile.joined_arrays import join_small_arrays
from alpa_cfp.spmd.ir import mlir, step_barriers
from alpa_cfp.spmd.ir.hlo_text import as_alpa_reads_it

# XLA's names of the passes that join all-reduces, on TPUs, GPUs and CPUs.
_SUM_COMBINERS = "all-reduce-combiner,gpu-all-reduce-combiner,cpu-all-reduce-combiner"
# In the targets of custom calls, whose names MLIR's bytecode holds as they are; one named elsewhere costs an import.
_LAPACK, _HYBRID = b"lapack_", b"hybrid_"
# Up to JAX 0.11 an array comes to the host part by part. Since 0.12 it comes as a whole, in the shape that the runtime
# knows; of a result of a program that runs once on each device the runtime knows the shape of a part alone. Inside of
# a `sdy.manual_computation` it would know the whole, but XLA (jaxlib 0.12.0.1) refuses collectives of several arrays.
RESULTS_ARE_PARTS = hasattr(jax_array.ArrayImpl, "_to_np_array_did_copy")


def compile_and_load(
    bytecode: bytes, devices: Devices, *, one_program_per_device: bool, combine_sums: bool = True
) -> Any:
    """Compile StableHLO for `devices` and load it.

    Args:
        bytecode: The module.
        devices: The devices, in the order of the logical mesh.
        one_program_per_device: The module is one device's program, run with a replica on each device. Otherwise it is
            the whole program, which XLA partitions.
        combine_sums: Whether XLA may join all-reduces that do not need each other. On CPUs it then joins a recomputed
            one with the first, too, which keeps alive what was to be recomputed.
    """
    count = len(devices)
    replicas, partitions = (count, 1) if one_program_per_device else (1, count)
    client = devices[0].client
    assignment = np.array([device.id for device in devices]).reshape(replicas, partitions)
    options = compiler.get_compile_options(replicas, partitions, assignment, backend=client)
    build = options.executable_build_options
    build.use_spmd_partitioning = not one_program_per_device
    build.use_shardy_partitioner = True
    if not combine_sums:
        options.env_option_overrides = [("xla_disable_hlo_passes", _SUM_COMBINERS)]
    with mlir.context():
        module = mlir.parse(bytecode)
        prepare_for(devices[0].platform, module, bytecode, one_program_per_device=one_program_per_device)
        return client.compile_and_load(module, xc.DeviceList(devices), options)


def prepare_for(platform: str, module: Any, bytecode: bytes, *, one_program_per_device: bool) -> None:
    """Make a module ready for the compiler of a platform ("cpu", "gpu"), in place.

    Args:
        platform: The platform.
        module: The module.
        bytecode: The same module as bytecode.
        one_program_per_device: Whether it is one device's program.
    """
    _initialize_linear_algebra(bytecode, platform)
    if platform == "cpu":
        if step_barriers.may_have_barriers(bytecode):
            step_barriers.keep_apart(module)
        if one_program_per_device:
            join_small_arrays(module)


def _initialize_linear_algebra(bytecode: bytes, platform: str) -> None:
    """Initialise the libraries that `bytecode` calls on `platform` ("cpu", "gpu"); more than once has no effect.

    Decompositions call LAPACK on CPUs, which jaxlib has from scipy, and in part MAGMA, or LAPACK on the host, on GPUs.
    JAX hands jaxlib these functions when it lowers such an op. A process that is given a program, such as
    one that measures or a host of a mesh, has to do it before the program runs: jaxlib would call a null pointer.
    """
    if platform == "cpu" and _LAPACK in bytecode:
        linalg.initialize_lapack()
    elif platform != "cpu" and _HYBRID in bytecode:
        gpu_solver.initialize_hybrid_kernels()


def array_handler(shape: Sequence[int], dtype: np.dtype, sharding: Sharding) -> Any:
    """A handler that makes one `jax.Array` of the devices' buffers of one result."""
    handler: Any = pxla.global_aval_to_result_handler(core.ShapedArray(tuple(shape), dtype), sharding, committed=True)
    return handler.wrap(assembled) if RESULTS_ARE_PARTS else handler


def execute(executable: Any, arguments: Sequence[jax.Array], handlers: Sequence[Any]) -> list[jax.Array]:
    """Run a loaded executable on sharded arrays; returns as soon as the work is enqueued."""
    return executable.execute_sharded(arguments).consume_with_handlers(handlers)


def assembled(array: Any) -> jax.Array:
    """The same buffers as an array whose shape the runtime knows, too; see `RESULTS_ARE_PARTS`.

    What has no buffers yet, inside of `jax.jit`, stays as it is.
    """
    if not isinstance(array, jax_array.ArrayImpl) or array.sharding.is_fully_replicated:
        return array
    return jax_array.ArrayImpl(array.aval, array.sharding, array._arrays, committed=True, _skip_checks=True)


def weakly_typed(array: Any) -> jax.Array:
    """The same buffers as an array whose dtype yields to that of what it meets, as a Python number's does."""
    aval = array.aval.update(weak_type=True)
    return jax_array.ArrayImpl(aval, array.sharding, array._arrays, committed=True, _skip_checks=True)


def optimized_text(executable: Any) -> str:
    """The optimised HLO as text, with the shapes of operands: alpa's readers look for them."""
    options = _hlo.HloPrintOptions()
    options.print_operand_shape = True
    return as_alpa_reads_it(executable.hlo_modules()[0].to_string(options))


def memory_bytes(executable: Any) -> dict[str, int]:
    """The memory that one device needs, in bytes.

    "arguments", "outputs", "aliased" (outputs that are in arguments' buffers), "temporaries".
    """
    stats = executable.get_compiled_memory_stats()
    return {
        "arguments": stats.argument_size_in_bytes,
        "outputs": stats.output_size_in_bytes,
        "aliased": stats.alias_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
    }


def cost_analysis(executable: Any) -> dict[str, float | None]:
    """The work of one device in a run, by XLA's own count: "flops", "bytes_accessed"; None where it does not tell."""
    counts = executable.cost_analysis() or {}
    return {"flops": counts.get("flops"), "bytes_accessed": counts.get("bytes accessed")}


def array_of_parts(parts: Sequence[Any], shape: Sequence[int], dtype: np.dtype, sharding: Sharding) -> jax.Array:
    """One array of the parts that the devices of this process hold of it, in the devices' order; nothing is checked.

    `execute` takes such arrays only; the public function that makes them looks at every part again in each step.
    """
    return jax_array.ArrayImpl(
        core.ShapedArray(tuple(shape), dtype), sharding, list(parts), committed=True, _skip_checks=True
    )


def parts_of_array(array: Any) -> list[jax.Array]:
    """The parts that each device of this process holds of an array, in the order of the devices."""
    return list(array._arrays)
