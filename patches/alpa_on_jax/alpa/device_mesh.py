"""Replacements in `alpa.device_mesh`: the local mesh on `jax.Array`s, and which mesh is the global one.

Where alpa kept a list of single-device buffers for each array, there is one `jax.Array` that lies on the mesh; an array
that already lies as the program wants it goes through untouched. A local mesh does not need Ray; those that do are in
`distributed_mesh`.
"""

import contextlib
import math
import operator
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np

from alpa_cfp.spmd.compile import backend
from alpa_cfp.spmd.compile.devices import Device
from alpa_cfp.spmd.compile.executable import Client
from alpa_on_jax import errors
from alpa_on_jax.alpa import distributed_mesh, mesh_groups
from alpa_on_jax.alpa.mesh_profiling import refused
from alpa_on_jax.arrays.placement import Placer, block_until_all_ready, device_memory, sharding_of_spec
from alpa_on_jax.in_process import place as in_process
from alpa_on_jax.ray_mesh.cluster import attaching, hosts
from alpa_on_jax.replacing import replace, replace_in_class


def apply(module: ModuleType) -> None:
    """Replace what alpa's meshes do with devices, processes and arrays."""
    _replace_local_mesh(module)
    _replace_logical_meshes(module)
    distributed_mesh.apply(module)
    mesh_groups.apply(module)
    # Each host would say so only in its own output.
    replace_in_class(module.DistributedPhysicalDeviceMesh, profile_hlo_ops=refused("profile_hlo_ops"))
    _replace_globals(module)


def _replace_local_mesh(module: ModuleType) -> None:
    global_config = module.global_config

    def __init__(self: Any, devices: Sequence[Device] | None = None) -> None:
        self.devices = list(devices) if devices is not None else jax.local_devices()
        if not self.devices:
            raise errors.MeshShapeError.no_devices()
        if self.devices[0] is not None and len(set(self.devices)) < len(self.devices):
            raise errors.MeshShapeError.repeated(self.devices)
        self.num_hosts = 1
        self.num_devices_per_host = len(self.devices)
        self.mesh_id = -1
        self.device_strs = []
        self.operation_executables = {}
        real = self.devices if self.devices[0] is not None else jax.local_devices()[: len(self.devices)]
        if len(real) < len(self.devices):
            raise errors.MeshShapeError.of_shape((1, len(self.devices)), len(real))
        self.backend = Client(real, global_config.runtime_random_seed)
        self._placer = Placer(tuple(real))

    def shard_args_to_bufs(
        self: Any,
        shard_indices: Sequence[Any],
        donated_invars: Sequence[bool],
        batch_invars: Sequence[bool],
        num_micro_batches: int | None,
        args: Sequence[Any],
    ) -> list[Any]:
        """Put the arguments on the mesh; a batch becomes a list of micro-batches."""
        return self._placer.place(shard_indices, donated_invars, batch_invars, num_micro_batches, args)

    def shard_args_to_arrays(
        self: Any,
        avals: Sequence[Any],
        shard_indices: Sequence[Any],
        sharding_specs: Sequence[Any],
        args: Sequence[Any],
    ) -> list[jax.Array]:
        """Put host arrays on the mesh as `sharding_specs` say."""
        if global_config.use_dummy_value_for_benchmarking:
            args = [jax.numpy.full(aval.shape, 1e-8, aval.dtype) for aval in avals]
        # Copies, because a device of the CPU may go on using the memory, and who loads data may write the next batch
        # there.
        args = [np.array(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        devices = tuple(self.backend.devices())
        return jax.device_put(list(args), [sharding_of_spec(devices, spec) for spec in sharding_specs])

    def get_outputs_handler(self: Any, avals: Sequence[Any], sharding_specs: Sequence[Any]) -> Callable[[Any], Any]:
        """A program's results are arrays already, but do not know which of them are weakly typed.

        A step number that was a Python number must stay what it was, or the second step is another program.
        """
        weak = [i for i, aval in enumerate(avals) if aval.weak_type]
        if not weak:
            return list

        def handle(results: Sequence[jax.Array]) -> list[jax.Array]:
            handled = list(results)
            for i in weak:
                handled[i] = backend.weakly_typed(handled[i])
            return handled

        return handle

    def set_runtime_random_seed(self: Any, seed: int) -> None:
        self.backend.random_state.set_seed(seed)

    def get_memory_allocated(self: Any) -> int:
        return max(device_memory(device, "bytes_in_use") for device in self.backend.devices())

    def get_max_memory_allocated(self: Any) -> int:
        return max(device_memory(device, "peak_bytes_in_use") for device in self.backend.devices())

    def get_available_memory(self: Any) -> int:
        return min(
            device_memory(device, "bytes_limit") - device_memory(device, "bytes_in_use")
            for device in self.backend.devices()
        )

    def reset_memory_stats(self: Any) -> None:
        """Stock clients keep the peak since they were started: there is nothing to reset."""

    def sync_workers(self: Any) -> None:
        block_until_all_ready(self.backend.devices())

    replace_in_class(
        module.LocalPhysicalDeviceMesh,
        __init__,
        shard_args_to_bufs,
        shard_args_to_arrays,
        get_outputs_handler,
        set_runtime_random_seed,
        get_memory_allocated,
        get_max_memory_allocated,
        get_available_memory,
        reset_memory_stats,
        sync_workers,
    )


def _replace_logical_meshes(module: ModuleType) -> None:
    original = module.PhysicalDeviceMesh.get_logical_mesh

    def get_logical_mesh(
        self: Any,
        mesh_shape: Sequence[int] | None = None,
        mesh_alpha: Sequence[float] | None = None,
        mesh_beta: Sequence[float] | None = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        """As alpa's own.

        Raises:
            errors.MeshShapeError: the shape, or the costs of its axes, do not fit.
        """
        if mesh_shape is not None:
            check_mesh_shape(mesh_shape, self.num_devices)
        for option, costs in (("mesh_alpha", mesh_alpha), ("mesh_beta", mesh_beta)):
            if costs is not None:
                check_mesh_costs(option, costs)
        return original(self, mesh_shape, mesh_alpha, mesh_beta, *args, **options)

    replace_in_class(module.PhysicalDeviceMesh, get_logical_mesh)


def check_mesh_shape(shape: Any, num_devices: int) -> None:
    """Hold that `num_devices` devices form a logical mesh of `shape`.

    Raises:
        errors.MeshShapeError: they do not.
    """
    try:
        sizes = [operator.index(size) for size in shape]
    except TypeError:
        sizes = []
    if len(sizes) != 2 or min(sizes) < 1:
        raise errors.MeshShapeError.no_shape(shape)
    if math.prod(sizes) != num_devices:
        raise errors.MeshShapeError.of_shape(sizes, num_devices)


def check_mesh_costs(option: str, costs: Any) -> None:
    """Hold that `costs` has a cost for each axis of a logical mesh; `option` is their name.

    Raises:
        errors.MeshShapeError: it has not.
    """
    try:
        numbers = [float(cost) for cost in costs]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != 2 or not all(0 <= number < math.inf for number in numbers):
        raise errors.MeshShapeError.costs(option, costs)


def _replace_globals(module: ModuleType) -> None:
    global_config = module.global_config
    # What ends with the global cluster besides its meshes.
    leaving = contextlib.ExitStack()

    def init_global_cluster(
        cluster: str,
        num_nodes: int | None = None,
        num_devices_per_node: int | None = None,
        namespace: str | None = None,
        cluster_address: str | None = None,
    ) -> None:
        """Make the global mesh of this process' devices, or hold devices of a Ray cluster for one.

        Raises:
            errors.ClusterError: see `attaching.attach` and `DeviceCluster`; nothing is held or connected then.
        """
        if cluster == "local":
            module.set_global_physical_mesh(module.LocalPhysicalDeviceMesh())
            # What pipelines are cut from.
            module.set_global_virtual_physical_mesh(in_process.virtual_mesh(module.VirtualPhysicalMesh))
            return

        def devices_here() -> dict[str, int]:
            count = num_devices_per_node or len(jax.local_devices())
            return {hosts.CPU_DEVICE: count} if global_config.backend == "cpu" else {}

        with contextlib.ExitStack() as undo:
            attachment = attaching.attach(cluster_address, namespace, devices_here)
            undo.callback(attachment.leave)
            if global_config.backend == "gpu":
                undo.callback(jax.config.update, "jax_platform_name", jax.config.values["jax_platform_name"])
                # The GPUs are the hosts'.
                jax.config.update("jax_platform_name", "cpu")
            new = module.DeviceCluster(num_nodes, num_devices_per_node)
            undo.callback(new.delete_placement_group)
            module.set_global_virtual_physical_mesh(new.get_virtual_physical_mesh())
            module.set_global_cluster(new)
            leaving.push(undo.pop_all())

    def shutdown_global_cluster() -> None:
        """End the global meshes, let the cluster's devices go, and leave Ray if `alpa.init` connected this process.

        JAX's platform is then what it was before.
        """
        physical, virtual = module.global_physical_mesh, module.global_virtual_physical_mesh
        module.set_global_physical_mesh(None)
        module.set_global_virtual_physical_mesh(None)
        module.set_global_cluster(None)
        with leaving:
            if virtual is not None and virtual.launched_physical_mesh_group is not None:
                leaving.callback(virtual.launched_physical_mesh_group.shutdown)
            if physical is not None:
                leaving.callback(physical.shutdown)
        if virtual is not None:
            # Programs that are kept for a next call are those of meshes that have ended.
            from alpa.api import clear_executable_cache

            clear_executable_cache()

    replace(module, init_global_cluster, shutdown_global_cluster)
