"""Devices for pipelines that are to be there at the same time: takes a case and a cluster, gives a place for each.

A pipeline holds its devices with processes of its own, and has them in submeshes of its own. In this process, meshes
are threads, and any number of pipelines can be there. On a Ray cluster each pipeline has a placement group of its own,
if the cluster has the devices: virtual ones are soon offered. If it has not, all share one place, in turn. Invariant:
when `places` is left, no mesh is left, and what was held on the cluster is free.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import alpa
import jax
from alpa.device_mesh import (
    DeviceCluster,
    VirtualPhysicalMesh,
    get_global_cluster,
    get_global_physical_mesh,
    get_global_virtual_physical_mesh,
    set_global_cluster,
)

from alpa_cfp_bench import cluster as hosts_of
from alpa_cfp_bench.case import Case, Cluster
from alpa_on_jax.in_process.place import virtual_mesh
from alpa_on_jax.ray_mesh.cluster.hosts import RESOURCE_NAMES

# Of the CPUs of a cluster so many are left for the processes in which alpa compiles candidate stages.
_COMPILERS = 2


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pipeline can be.

    Attributes:
        mesh: Alpa's `VirtualPhysicalMesh` of its devices.
        cluster: Alpa's `DeviceCluster` that holds them; None for devices of this process.
    """

    mesh: Any
    cluster: Any = None

    @contextlib.contextmanager
    def used(self) -> Iterator[Any]:
        """For the time of the context, alpa plans, measures and launches there."""
        if self.cluster is None:
            yield self.mesh
            return
        before = get_global_cluster()
        set_global_cluster(self.cluster)
        try:
            yield self.mesh
        finally:
            set_global_cluster(before)

    def clear(self) -> None:
        """End the pipeline that is there, if there is one."""
        group = self.mesh.launched_physical_mesh_group
        if group is not None:
            group.shutdown()


@dataclass(frozen=True, slots=True)
class Places:
    """Where pipelines can be.

    Attributes:
        each: A place for each, or one for all of them, in turn.
        are_here: Whether the devices are of this process.
    """

    each: tuple[Place, ...]
    are_here: bool

    @property
    def shape(self) -> tuple[int, int]:
        """How many hosts each has, and how many devices each host."""
        hosts, devices = self.each[0].mesh.shape
        return hosts, devices

    def mesh_of_hosts(self) -> Any:
        """All hosts of a place as alpa's mesh, in the stead of what is there now; None for devices of this process."""
        if self.are_here:
            return None
        place = self.each[0]
        place.clear()
        with place.used():
            return get_global_physical_mesh(create_if_not_exist=True)

    def of(self, number: int) -> Place:
        """The place of a pipeline."""
        return self.each[min(number, len(self.each) - 1)]

    def are_shared(self, pipelines: int) -> bool:
        """Whether so many pipelines cannot be there at once."""
        return len(self.each) < pipelines


@contextlib.contextmanager
def places(case: Case, cluster: Cluster | None, pipelines: int) -> Iterator[Places]:
    """Places for so many pipelines of a case.

    Args:
        case: Says how many devices a pipeline has.
        cluster: On whose hosts; None for devices of this process.
        pipelines: How many.

    Raises:
        HostsMeshError, HostsError, alpa_on_jax.errors.ClusterError: see `cluster.joined`.
    """
    with contextlib.ExitStack() as stack:
        if cluster is None:
            found = Places(tuple(_here(case.num_devices) for _ in range(pipelines)), True)
        else:
            hosts, devices = stack.enter_context(hosts_of.joined(case, cluster))
            found = Places(_on_hosts(stack, hosts, devices, pipelines), False)
        for place in found.each:
            stack.callback(place.clear)
        yield found


def _here(count: int) -> Place:
    mesh = virtual_mesh(VirtualPhysicalMesh)
    if count < len(jax.local_devices()):
        mesh = mesh.slice_2d([0], [list(range(count))])
    return Place(mesh)


def _on_hosts(stack: contextlib.ExitStack, hosts: int, devices: int, pipelines: int) -> tuple[Place, ...]:
    made = [Place(get_global_virtual_physical_mesh(), get_global_cluster())]
    if not _are_free(hosts, devices, pipelines - 1):
        return tuple(made)
    for _ in range(pipelines - 1):
        held: Any = DeviceCluster(hosts, devices)
        stack.callback(held.delete_placement_group)
        made.append(Place(held.get_virtual_physical_mesh(), held))
    return tuple(made)


def _are_free(hosts: int, devices: int, times: int) -> bool:
    """Whether the cluster has the devices of so many more pipelines, and CPUs for who holds them and who compiles."""
    import ray

    config: Any = alpa.global_config
    free = ray.available_resources()
    name = RESOURCE_NAMES[config.backend]
    return free.get(name, 0) >= times * hosts * devices and free.get("CPU", 0) >= times * hosts + _COMPILERS
