"""Meshes of this process' devices for pipelines: which devices there are to be cut into meshes, and how one begins.

Takes alpa's virtual meshes; gives handles of hosts as `ray_mesh.launching` does, without a service.
"""

from typing import Any

import jax

from alpa_cfp.spmd.distributed.host_place import HostPlace
from alpa_on_jax.in_process.actors import Actor
from alpa_on_jax.ray_mesh import hosts
from alpa_on_jax.ray_mesh.limits import Limits

_IP = "127.0.0.1"
_HERE = "InThisProcess"


def virtual_mesh(virtual_mesh_class: Any) -> Any:
    """This process' devices, as alpa's `VirtualPhysicalMesh` of one host."""
    host = {hosts.KEY: _IP, hosts.ADDRESS: _IP, _HERE: True}
    return virtual_mesh_class([0], [host], len(jax.local_devices()))


def is_here(mesh: Any) -> bool:
    """Whether a mesh, physical or virtual, is one of this process' devices."""
    return bool(mesh.host_info[0].get(_HERE))


def launch(mesh: Any, config: Any) -> tuple[None, list[Actor]]:
    """Begin the host of a mesh.

    Args:
        mesh: Alpa's `DistributedPhysicalDeviceMesh`.
        config: Alpa's `global_config`.
    """
    from alpa_on_jax.in_process.host import InProcessHost
    from alpa_on_jax.ray_mesh.host_worker import ALWAYS

    limits: Limits = config.host_limits
    devices = [jax.local_devices()[number] for number in mesh.devices[0]]
    wide = jax.config.values["jax_enable_x64"]
    place = HostPlace(
        "",
        1,
        0,
        _IP,
        devices[0].platform,
        len(devices),
        wide,
        limits.connect_s,
        limits.heartbeat_s,
        limits.shutdown_s,
        limits.call_s,
    )
    seed = config.runtime_random_seed
    return None, [Actor(lambda: InProcessHost(place, devices, mesh.mesh_id, seed), ALWAYS, f"mesh {mesh.mesh_id}")]
