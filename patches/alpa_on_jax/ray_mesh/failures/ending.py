"""How the processes of a mesh end, in one way, and what is left in their place.

Takes a mesh of alpa; leaves no process and no service. Invariant: who wants a process of an ended mesh hears so.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from alpa_cfp.spmd.distributed import runtime as jax_runtime
from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.failures.limits import Limits
from alpa_on_jax.ray_mesh.remote_calls import references

log = logging.getLogger("alpa_on_jax")


class _NoWorkers(Sequence[Any]):
    """In the place of the processes of a mesh that has ended: none, and whoever wants one hears why."""

    def __init__(self, mesh: Any) -> None:
        self._mesh = mesh

    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: Any) -> Any:
        raise errors.MeshEndedError.of(self._mesh)

    def __iter__(self) -> Iterator[Any]:
        raise errors.MeshEndedError.of(self._mesh)


def check_not_ended(mesh: Any) -> None:
    """Hold that a mesh has its processes.

    Raises:
        errors.MeshEndedError: it has ended.
    """
    if not mesh.workers:
        raise errors.MeshEndedError.of(mesh)


def end(mesh: Any, *, by_force: bool, limits: Limits) -> None:
    """End all processes of a mesh and its service; the one way in which a mesh ends. Does nothing if it has ended.

    Args:
        mesh: Alpa's `DistributedPhysicalDeviceMesh`.
        by_force: Do not let the processes finish what they do first, because they are stuck or gone.
        limits: How long they may take otherwise.
    """
    workers, service = mesh.workers, mesh.service_server
    if not workers:
        return
    mesh.workers, mesh.service_server, mesh.launched = _NoWorkers(mesh), None, False
    if not by_force and references.are_reachable(workers):
        _finish(workers, mesh, limits)
    end_processes(workers, service)


def _finish(workers: Sequence[Any], mesh: Any, limits: Limits) -> None:
    """Let the hosts finish moving what was saved, and leave the mesh together."""
    try:
        references.get([worker.sync_move_worker.remote() for worker in workers], limits.move_s)
        references.get([worker.shutdown.remote() for worker in workers], limits.shutdown_s)
    except Exception as error:  # noqa: BLE001
        # What a checkpoint lacks, or that a host is gone, is told; the mesh is ended all the same.
        reason = str(error).partition("\n")[0]
        log.warning("the mesh of %s did not end by itself and is ended: %s", ", ".join(mesh.node_ips), reason)


def end_processes(workers: Sequence[Any], service: jax_runtime.Service | None) -> None:
    """End processes that are the hosts of a mesh, and its service."""
    for worker in workers:
        references.kill(worker)
    if service is not None:
        service.shutdown()
