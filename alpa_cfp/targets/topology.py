"""The one place that talks to the compilers of devices that are not here: JAX's topologies and the vendors' plugins.

Takes a `Target`, and programs as StableHLO; gives devices that can be compiled for, and the `Compiled` program: the
scheduled text and the memory that it needs. No driver and no device is touched: both plugins describe a machine from a
text. It is meant for a process of its own: a plugin stays loaded, libtpu logs to stderr, and either can end a process.
Invariant: a program is compiled with the options that `spmd.compile.backend` gives for devices that are attached, and
the environment is afterwards what it was.

Tested with jax 0.10.2, 0.11.2 and 0.12.0.1 and the plugins in `TESTED`:
`jax.experimental.topologies.get_topology_desc` with `target_config` and `topology` for GPUs, `chips_per_host_bounds`
and `chip_config_name` for TPUs; `Client.compile` of the devices' client; `jax._src.compiler.get_compile_options` with
`env_option_overrides`.
"""

import contextlib
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import jax
import numpy as np
from jax._src import compiler
from jax._src.lib import xla_client as xc
from jax.experimental import topologies

from alpa_cfp import quantities
from alpa_cfp.spmd.compile import backend
from alpa_cfp.spmd.compile.devices import Devices
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.targets.chips import Chip, Kind, SliceShapes
from alpa_cfp.targets.errors import TargetCompilerError
from alpa_cfp.targets.target import Target


@dataclass(frozen=True, slots=True)
class Plugin:
    """The distribution that a compiler comes in.

    Attributes:
        package: Its name.
        extra: The extra of this project that installs it in the version that belongs to jax.
        versions: For each version of jax that is tested the plugin's.
    """

    package: str
    extra: str
    versions: Mapping[str, str]


TESTED: Mapping[Kind, Plugin] = {
    "gpu": Plugin("jax-cuda12-plugin", "gpu-target", {"0.10.2": "0.10.2", "0.11.2": "0.11.2", "0.12.0.1": "0.12.0.1"}),
    "tpu": Plugin("libtpu", "tpu-target", {"0.10.2": "0.0.42.1", "0.11.2": "0.0.48.1", "0.12.0.1": "0.0.50.1"}),
}
# Kernels are otherwise chosen by timing them, for which there is no device: matrix products are cuBLAS calls.
_GPU_OPTIONS = (("xla_gpu_enable_triton_gemm", False), ("xla_gpu_autotune_level", 0))
# XLA's names of the passes that join all-reduces, on TPUs and on GPUs.
_SUM_COMBINERS = {"tpu": "all-reduce-combiner", "gpu": "all-reduce-combiner,gpu-all-reduce-combiner"}
_TORUS_DIMS = 3
# As in XLA's newer specs.
_CUDA_VERSIONS = {
    "driver_version": "13.0.0",
    "runtime_version": "12.8.0",
    "compile_time_toolkit_version": "12.8.0",
    "dnn_version": "9.10.0",
}
_CUDNN = "dnn_version_info { major: 9 minor: 10 }"


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program as the target's compiler leaves it.

    Attributes:
        text: The optimised HLO of one device, in the order in which it runs.
        argument_bytes, output_bytes: Of one device.
        aliased_bytes: Of outputs that are in arguments' buffers.
        temporary_bytes: Of one device beside these. What a TPU keeps on the chip is not in it.
        seconds: What compiling took here.
    """

    text: str
    argument_bytes: int
    output_bytes: int
    aliased_bytes: int
    temporary_bytes: int
    seconds: float

    @property
    def total_bytes(self) -> int:
        """What one device needs: arguments + outputs - aliased ones + temporaries."""
        return self.argument_bytes + self.output_bytes - self.aliased_bytes + self.temporary_bytes


def compiler_version(target: Target) -> str:
    """The version of the target's compiler, for what is kept of its work; imports no plugin.

    Raises:
        TargetCompilerError: the plugin is not installed, or it or jax has a version that is not tested.
    """
    plugin, kind = TESTED[target.chip.kind], target.chip.kind.upper()
    wanted = plugin.versions.get(jax.__version__)
    try:
        found = metadata.version(plugin.package)
    except metadata.PackageNotFoundError:
        version = wanted or "of the version that belongs to jax"
        raise TargetCompilerError.missing(plugin.package, kind, version, plugin.extra) from None
    if found != wanted:
        tested = [f"{plugin.package} {own} beside jax {version}" for version, own in plugin.versions.items()]
        raise TargetCompilerError.untested(plugin.package, found, jax.__version__, tested, plugin.extra)
    return f"{plugin.package} {found}"


def description(target: Target) -> dict[str, Any]:
    """What the compiler is told of a target, as `jax.experimental.topologies.get_topology_desc` takes it.

    Programs that were compiled by one compiler for equal descriptions are equal.
    """
    slices = target.chip.slices
    if slices is None or target.torus is None:
        # Partitions x hosts of each x devices of each: a partition's devices reach each other by NVLink, if at all.
        sizes = (1, target.hosts, target.devices_per_host)
        return {"platform": "cuda", "topology": quantities.shape(sizes), "target_config": gpu_description(target.chip)}
    host = slices.host_of(target.torus)
    described = {
        "platform": "tpu",
        "topology_name": f"{slices.compiler_name}:{quantities.shape(target.torus)}",
        "chips_per_host_bounds": (*host, *(1,) * (_TORUS_DIMS - len(host))),
    }
    return described | {"chip_config_name": "megacore"} if slices.megacore else described


def gpu_description(chip: Chip) -> str:
    """The text of XLA's `GpuTargetConfigProto` for a GPU.

    Source: openxla/xla, `xla/backends/gpu/target_config/specs/`, whose fields that are alike for all of NVIDIA's chips
    since Ampere stand here, and the others in the chip's data.
    """
    architecture = chip.architecture
    if architecture is None:
        raise TargetCompilerError.not_described(chip.name, "it has no description of a GPU")
    capability = architecture.compute_capability
    major, minor = capability.removesuffix("a").split(".")
    feature = "ACCELERATED_FEATURES" if capability.endswith("a") else "NONE"
    fields = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 49152,
        "shared_memory_per_core": architecture.shared_memory_per_core_bytes,
        "threads_per_core_limit": 2048,
        "core_count": chip.cores,
        "fpus_per_core": architecture.f32_units_per_core,
        "block_dim_limit_x": 2147483647,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "memory_bandwidth": round(chip.memory_bytes_per_s),
        "l2_cache_size": architecture.l2_bytes,
        "clock_rate_ghz": chip.clock_hz / 1e9,
        "device_memory_size": chip.memory_bytes,
        "shared_memory_per_block_optin": architecture.shared_memory_per_block_bytes,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
        "thread_dim_limit_x": 1024,
        "thread_dim_limit_y": 1024,
        "thread_dim_limit_z": 64,
    }
    lines = [f"  {name}: {value}" for name, value in fields.items()]
    lines.append(f"  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {feature} }}")
    lines += [f'  {name}: "{version}"' for name, version in _CUDA_VERSIONS.items()]
    return "\n".join(
        [
            "gpu_device_info {",
            *lines,
            "}",
            'platform_name: "CUDA"',
            _CUDNN,
            f'device_description_str: "{chip.device_kind}"',
        ]
    )


def devices_of(target: Target) -> Devices:
    """The devices of a target, for compiling only: nothing runs on them.

    Device number i is device i % `devices_per_host` of host i // `devices_per_host` of GPUs, and that at
    `numpy.unravel_index(i, torus)` of TPUs.

    Raises:
        TargetCompilerError: the compiler cannot be used here, or refuses the target.
    """
    compiler_version(target)
    with _environment(_variables(target)):
        try:
            devices = topologies.get_topology_desc(**description(target)).devices
        except NotImplementedError as error:
            raise TargetCompilerError.not_registered(str(error)) from error
        except jax.errors.JaxRuntimeError as error:
            raise TargetCompilerError.not_described(target.name, str(error)) from error
    if len(devices) != target.num_devices:
        raise TargetCompilerError.not_described(target.name, f"it has {len(devices)} devices there")
    # libtpu numbers chips host by host.
    return tuple(sorted(devices, key=lambda each: each.id if target.torus is None else tuple(each.coords)))


def compile_for(
    bytecode: bytes, devices: Devices, *, one_program_per_device: bool, combine_sums: bool = True
) -> Compiled:
    """Compile StableHLO for devices that are not here, as `spmd.compile.backend` does for devices that are.

    Args:
        bytecode: The module, with its aliases marked.
        devices: Of `devices_of`, in the order of the logical mesh. TPUs are compiled for a slice as a whole: all of
            them; of GPUs some are enough.
        one_program_per_device: The module is one device's program, with its collectives in it; otherwise it is the
            whole program, which XLA partitions.
        combine_sums: Whether XLA may join all-reduces.

    Raises:
        TargetCompilerError: the devices are a part of a slice.
        jax.errors.JaxRuntimeError: XLA's reason; it begins with RESOURCE_EXHAUSTED where a TPU has too little memory.
            For GPUs nothing is refused for its size: compare `Compiled.total_bytes`.
    """
    count, client, platform = len(devices), devices[0].client, devices[0].platform
    if platform == "tpu" and count != len(client.devices()):
        raise TargetCompilerError.part_of_slice(count, len(client.devices()))
    replicas, partitions = (count, 1) if one_program_per_device else (1, count)
    assignment = np.array([device.id for device in devices]).reshape(replicas, partitions)
    options = compiler.get_compile_options(replicas, partitions, assignment, backend=client)
    build = options.executable_build_options
    build.use_spmd_partitioning = not one_program_per_device
    build.use_shardy_partitioner = True
    overrides: list[tuple[str, Any]] = list(_GPU_OPTIONS if platform == "gpu" else ())
    if not combine_sums:
        overrides.append(("xla_disable_hlo_passes", _SUM_COMBINERS[platform]))
    options.env_option_overrides = overrides
    with mlir.context():
        module = mlir.parse(bytecode)
        started = time.perf_counter()
        executable = client.compile(module, xc.DeviceList(tuple(devices)), options)
        seconds = time.perf_counter() - started
    sizes = backend.memory_bytes(executable)
    return Compiled(
        executable.hlo_modules()[0].to_string(),
        sizes["arguments"],
        sizes["outputs"],
        sizes["aliased"],
        sizes["temporaries"],
        seconds,
    )


def _variables(target: Target) -> dict[str, str | None]:
    """The environment in which the target's plugin is loaded; None for a variable that must not be there."""
    slices = target.chip.slices
    if slices is None or target.torus is None:
        # Otherwise the plugin is not registered without NVIDIA's libraries, unless JAX_PLATFORMS leaves GPUs out.
        return {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    return {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "TPU_ACCELERATOR_TYPE": _accelerator_type(target.chip, slices, target.torus),
        # Otherwise a second process at the same time fails for the lock that guards an attached TPU.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_LIBRARY_PATH": None,
    }


def _accelerator_type(chip: Chip, slices: SliceShapes, shape: tuple[int, ...]) -> str:
    """What Google Cloud calls a slice: "v5litepod-8", "v4-16". The number is that of cores."""
    return f"{slices.accelerator_type}-{math.prod(shape) * chip.cores}"


@contextlib.contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """For the time of the context, environment variables as given."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
