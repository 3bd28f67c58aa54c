"""How a mesh of this process' devices begins, for pipelines.

Takes alpa's meshes; gives handles of hosts as `ray_mesh.processes.launching` does, without a service.
"""

from typing import Any

import jax

from alpa_on_jax.ray_mesh.processes import launching
from alpa_on_jax.ray_mesh.remote_calls.actors import Actor


def launch(mesh: Any, config: Any) -> tuple[None, list[Actor]]:
    """Begin the host of a mesh.

    Args:
        mesh: Alpa's `DistributedPhysicalDeviceMesh`.
        config: Alpa's `global_config`.
    """
    from alpa_on_jax.in_process.host import InProcessHost
    from alpa_on_jax.ray_mesh.processes.host_worker import ALWAYS

    devices = [jax.local_devices()[number] for number in mesh.devices[0]]
    place = launching.place_of(mesh, 0, "", config)
    seed = config.runtime_random_seed
    return None, [Actor(lambda: InProcessHost(place, devices, mesh.mesh_id, seed), ALWAYS, f"mesh {mesh.mesh_id}")]
