"""Meshes of this process' devices, as alpa's virtual meshes: which there are, and which are such."""

from typing import Any

import jax

from alpa_on_jax.ray_mesh.cluster import hosts

IP = "127.0.0.1"
_HERE = "InThisProcess"


def virtual_mesh(virtual_mesh_class: Any) -> Any:
    """This process' devices, as alpa's `VirtualPhysicalMesh` of one host."""
    return virtual_mesh_class([0], [host_here()], len(jax.local_devices()))


def host_here() -> dict[str, Any]:
    """A host of this process, as alpa's virtual meshes describe hosts."""
    return {hosts.KEY: IP, hosts.ADDRESS: IP, _HERE: True}


def is_here(mesh: Any) -> bool:
    """Whether a mesh, physical or virtual, is one of this process' devices."""
    return bool(mesh.host_info[0].get(_HERE))
