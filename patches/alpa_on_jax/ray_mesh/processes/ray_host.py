"""The process of one host of a mesh that Ray manages: a Ray actor that joins the others and is a `HostWorker`.

Invariant: what is in `ALWAYS` answers whatever else the process does, in a thread of its own.
"""

from typing import Any

import ray
from alpa.global_env import global_config

from alpa_cfp.spmd.distributed import runtime as jax_runtime
from alpa_cfp.spmd.distributed.host_client import HostClient
from alpa_cfp.spmd.distributed.host_place import HostPlace
from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.failures.host_errors import Health
from alpa_on_jax.ray_mesh.processes.host_worker import HostWorker

HEALTH = "health"


class RayHost(HostWorker):
    """One host, in this process.

    Args:
        place: Which host of which mesh.
        mesh_id: Alpa's number of the mesh; None of the only one.
        seed: Of the random numbers of programs.
        config: The driver's options of alpa.
    """

    def __init__(self, place: HostPlace, mesh_id: int | None, seed: int, config: dict[str, Any]):
        vars(global_config).update(config)
        self.distributed_client = jax_runtime.join(place)
        super().__init__(place, HostClient(jax_runtime.devices_of_all_hosts(), seed), mesh_id, seed)
        if self.num_devices != place.num_devices:
            raise errors.HostError.other_devices(place.host, place.num_devices, self.num_devices)

    @ray.method(concurrency_group=HEALTH)
    def check_alive(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().check_alive()

    @ray.method(concurrency_group=HEALTH)
    def health(self) -> Health:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().health()

    def shutdown(self) -> None:
        """Leave the mesh, together with the other hosts."""
        super().shutdown()
        self.distributed_client.shutdown()
