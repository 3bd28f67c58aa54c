"""Replacements in `alpa.device_mesh` for the meshes of a pipeline. `apply` is called for that module.

Invariant: the meshes of a pipeline begin together and end together. Each waits for the next, so that a stage that is
lost leaves the others with nothing to do but wait.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.failures import ending
from alpa_on_jax.ray_mesh.resharding import groups
from alpa_on_jax.replacing import replace, replace_in_class


def apply(module: ModuleType) -> None:
    """Replace how several meshes are made, connected and ended."""
    config = module.global_config

    def get_physical_mesh_group(self: Any, sliced_virtual_meshes: Sequence[Any]) -> Any:
        """Make a mesh of each virtual one, all at a time; if one cannot be made, there is none.

        Raises:
            errors.HostError, errors.NoPortError: see `launch_xla_servers`.
        """
        if self.launched_physical_mesh_group is not None:
            raise errors.InternalError("a virtual mesh is cut into the meshes of a pipeline twice")
        with ThreadPoolExecutor(len(sliced_virtual_meshes)) as pool:
            making = [
                pool.submit(virtual.get_physical_mesh, number) for number, virtual in enumerate(sliced_virtual_meshes)
            ]
        failed = [each.exception() for each in making if each.exception() is not None]
        made = [each.result() for each in making if each.exception() is None]
        if failed:
            for mesh in made:
                ending.end(mesh, by_force=True, limits=config.host_limits)
            for virtual in sliced_virtual_meshes:
                virtual.launched_physical_mesh = None
            raise failed[0]  # pyright: ignore[reportGeneralTypeIssues]
        group = module.PhysicalDeviceMeshGroup(made, self)
        for mesh in made:
            mesh.group = group
        self.launched_physical_mesh_group = group
        return group

    original_get_logical_mesh = module.VirtualPhysicalMesh.get_logical_mesh

    def get_logical_mesh(self: Any, *args: Any, **options: Any) -> Any:
        """The mesh's devices in a shape; see alpa. Who plans for it can ask which devices: `virtual_mesh`."""
        mesh = original_get_logical_mesh(self, *args, **options)
        mesh.virtual_mesh = self
        return mesh

    def __getstate__(self: Any) -> dict[str, Any]:
        """What is sent to other processes: where the devices are is of no use there."""
        return {name: value for name, value in vars(self).items() if name != "virtual_mesh"}

    original_shutdown = module.PhysicalDeviceMeshGroup.shutdown

    def shutdown(self: Any) -> None:
        """End all meshes of the group."""
        original_shutdown(self)
        _forget_launched(self)

    def exception_shutdown(self: Any) -> None:
        """End all meshes of the group, of which some may be lost."""
        for mesh in self.meshes:
            mesh.shutdown(forced=True)
        _forget_launched(self)

    def create_and_record_cross_mesh_collective_communicators(meshes: Sequence[Any], key: bytes) -> list[Any]:
        """Let the hosts of several meshes sum scalars over them.

        Args:
            meshes: The meshes.
            key: Alpa's name of them.

        Returns:
            What alpa waits for.

        Raises:
            transport.TransportError: they cannot reach each other.
        """
        workers = [worker for mesh in meshes for worker in mesh.workers]
        ranks, first = [], 0
        for mesh in meshes:
            ranks.append(list(range(first, first + mesh.num_hosts)))
            first += mesh.num_hosts
        name = "all-reduce over " + ",".join(device for mesh in meshes for device in mesh.device_strs)
        known = vars(meshes[0]).setdefault("groups_of_meshes", set())
        if name not in known:
            groups.open_group(name, workers)
            known.add(name)
        return [worker.bind_cross_mesh.remote(key.decode(), name, ranks) for worker in workers]

    replace(module, create_and_record_cross_mesh_collective_communicators)
    replace_in_class(module.VirtualPhysicalMesh, get_physical_mesh_group, get_logical_mesh)
    replace_in_class(module.LogicalDeviceMesh, __getstate__)
    replace_in_class(module.PhysicalDeviceMeshGroup, shutdown, exception_shutdown)


def _forget_launched(group: Any) -> None:
    """Let another group be made in the place of this one."""
    if group.parent.launched_physical_mesh_group is group:
        group.parent.launched_physical_mesh_group = None
    for mesh in group.meshes:
        mesh.parent.launched_physical_mesh = None
