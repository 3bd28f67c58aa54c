"""Replacements in `alpa.device_mesh` for meshes of hosts that Ray manages. `apply` is called for that module.

The processes of a mesh, the cluster and the arrays are alpa's own classes; what is replaced in them starts and ends
processes (`ray_mesh`), asks Ray what it no longer answers in Ray 2.1's way, or takes arrays for what they are today.

Invariant: nothing calls Ray once this process is no longer connected to it. Ray would connect it anew, by itself, to
whatever cluster it finds, or start one.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax._src.array import ArrayImpl

from alpa_on_jax.arrays.placement import without_shared_buffers
from alpa_on_jax.in_process import launching as in_process
from alpa_on_jax.in_process import place
from alpa_on_jax.ray_mesh.cluster import hosts
from alpa_on_jax.ray_mesh.failures import ending, waiting
from alpa_on_jax.ray_mesh.processes import launching
from alpa_on_jax.ray_mesh.remote_calls import references
from alpa_on_jax.replacing import replace, replace_in_class


def apply(module: ModuleType) -> None:
    """Replace what of alpa's distributed mesh touches Ray, processes or array types."""
    _replace_mesh(module)
    _replace_cluster(module)
    _replace_arrays(module)
    # Last: what is here asks Ray itself, with limits of its own.
    replace(module, ray=waiting.BoundedRay(module.ray))


def _replace_mesh(module: ModuleType) -> None:
    mesh_class, global_config = module.DistributedPhysicalDeviceMesh, module.global_config
    original_shard_args_to_bufs = mesh_class.shard_args_to_bufs
    original_get_logical_mesh = mesh_class.get_logical_mesh

    def launch_xla_servers(self: Any) -> tuple[Any, list[Any]]:
        """Start the processes of the mesh.

        Raises:
            errors.HostError, errors.NoPortError: they could not be started; none is left.
        """
        if place.is_here(self):
            service, workers = in_process.launch(self, global_config)
        else:
            service, workers = launching.launch(self, global_config, module.retrieve_placement_group())
        waiting.watch(self, workers)
        return service, workers

    def shutdown(self: Any, forced: bool = False) -> None:
        """End the mesh and its processes; does nothing if it has ended."""
        self.operation_executables.clear()
        if self.launched:
            ending.end(self, by_force=forced, limits=global_config.host_limits)

    def get_logical_mesh(self: Any, *args: Any, **options: Any) -> Any:
        """The mesh's devices in a shape; see alpa.

        Raises:
            errors.MeshEndedError: the mesh has ended, so nothing need be planned for it.
        """
        ending.check_not_ended(self)
        return original_get_logical_mesh(self, *args, **options)

    def shard_args_to_bufs(
        self: Any,
        shard_indices: Sequence[Any],
        donated_invars: Sequence[bool],
        batch_invars: Sequence[bool],
        num_micro_batches: int | None,
        args: Sequence[Any],
    ) -> list[Any]:
        """Put the arguments on the mesh; a batch becomes a list of micro-batches.

        Raises:
            errors.MeshEndedError: the mesh has ended.
        """
        ending.check_not_ended(self)
        if any(donated_invars) and len({id(arg) for arg in args}) < len(args):
            args = without_shared_buffers(donated_invars, args, np.asarray)
        return original_shard_args_to_bufs(self, shard_indices, donated_invars, batch_invars, num_micro_batches, args)

    replace_in_class(
        mesh_class,
        launch_xla_servers,
        shutdown,
        get_logical_mesh,
        shard_args_to_bufs,
        delete_remote_buffers=_if_connected(mesh_class.delete_remote_buffers),
        delete_remote_executable=_if_connected(mesh_class.delete_remote_executable),
    )


def _if_connected(method: Callable[..., None]) -> Callable[..., None]:
    """`method`, which Python calls for what is no longer used, as long as there is somebody to tell."""
    # Kept here, because the names of this module are gone when Python ends and calls it last.
    is_finalizing, are_reachable = sys.is_finalizing, references.are_reachable

    @functools.wraps(method)
    def guarded(self: Any, *args: Any) -> None:
        if not is_finalizing() and are_reachable(self.workers):
            method(self, *args)

    return guarded


def _replace_cluster(module: ModuleType) -> None:
    global_config, ray = module.global_config, module.ray

    def __init__(
        self: Any, num_nodes: int | None = None, num_devices_per_node: int | None = None, namespace: str | None = None
    ) -> None:
        """Hold devices of the Ray cluster that this process is connected to.

        Args:
            num_nodes: How many hosts; all that have enough devices by default.
            num_devices_per_node: How many devices of each; all by default.
            namespace: Under which the devices are held, to be found again from another process.

        Raises:
            errors.ClusterResourcesError: there are not so many, or they are in use.
        """
        resource = global_config.ray_accelerator_name
        nodes = ray.nodes()
        name = f"{namespace}_pg" if namespace else None
        group = _existing_group(name)
        if group is None:
            offered = hosts.devices_of_nodes(nodes, resource)
            wanted = hosts.wanted_devices(offered, resource, num_nodes, num_devices_per_node)
            group = module.create_placement_group(len(wanted), wanted, name)
        self.namespace, self.placement_group = namespace, group
        self.head_info = {"address": ray.get_runtime_context().gcs_address}
        by_id = {node["NodeID"]: node for node in nodes}
        node_of_bundle = hosts.node_of_bundle(group)
        held = hosts.bundles_with(resource, group.bundle_specs)
        self.host_info = [hosts.host_of(by_id[node_of_bundle[index]]) for index in held]
        self.host_num_devices = [int(group.bundle_specs[index][resource]) for index in held]
        self.host_ips = [host[hosts.KEY] for host in self.host_info]

    def _existing_group(name: str | None) -> Any:
        if name is None:
            return None
        try:
            return ray.util.get_placement_group(name)
        except ValueError:
            return None

    def delete_placement_group(self: Any) -> None:
        """Let the devices go."""
        group, self.placement_group = self.placement_group, None
        if group is not None and ray.is_initialized():
            module.remove_placement_group(group)

    replace_in_class(module.DeviceCluster, __init__, delete_placement_group)


def _replace_arrays(module: ModuleType) -> None:
    array_class = module.DistributedArray

    def block_until_ready(self: Any) -> Any:
        """Wait until the array is computed; gives it back, as `jax.Array` does."""
        self.device_mesh.block_until_ready_remote_buffers([self.remote_ref])
        return self

    def __array__(self: Any, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The value, fetched from the hosts once."""
        return np.array(self._value, dtype=dtype, copy=copy)

    original_save = array_class.save

    def save(self: Any, ckpt_dir: str, local_cache_dir: str | None = None) -> None:
        """Write one copy of each part; the hosts do it after what they have been asked for before."""
        ending.check_not_ended(self.device_mesh)
        original_save(self, ckpt_dir, local_cache_dir)

    replace_in_class(array_class, block_until_ready, save, __array__)
    replace_in_class(module.ReplicatedDistributedArray, __array__)
    replace(module, shard_arg_handlers=_ShardHandlers(module))


class _ShardHandlers(dict[type, Callable[..., list[Any]]]):
    """How a value gets onto a mesh, by its type: alpa's own dictionary, for today's types of JAX too."""

    def __init__(self, module: ModuleType):
        super().__init__(module.shard_arg_handlers)
        self._module = module

    def __missing__(self, kind: type) -> Callable[..., list[Any]]:
        module = self._module
        if issubclass(kind, ArrayImpl):
            return module._shard_device_array
        return lambda value, *how: module._shard_array(np.asarray(value, jax.dtypes.result_type(value)), *how)
