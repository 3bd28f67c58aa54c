"""Replacements in `alpa.pipeline_parallel.cross_mesh_resharding`: the groups that arrays go through between meshes.

What is sent from where to where, and in which order, is alpa's, but that nothing is sent to a device twice. The hosts
of two meshes are connected to each other by this project's transport (`ray_mesh.transport`), in the place of NCCL
groups that each pair of devices joins.
"""

from types import ModuleType
from typing import Any

from alpa_on_jax.jax.interpreters.pxla import Chunked
from alpa_on_jax.ray_mesh.failures import waiting
from alpa_on_jax.ray_mesh.resharding import groups
from alpa_on_jax.replacing import replace, replace_in_class


def apply(module: ModuleType) -> None:
    """Replace what makes and ends groups, and what plans the messages between them."""
    compile_send_recv_tasks = module.SymbolicReshardingTask._compile_send_recv_tasks

    def instantiate(self: Any) -> None:
        """Connect the hosts of the two meshes, if they are not.

        Raises:
            transport.TransportError: they cannot reach each other.
        """
        if not self.instantiated:
            ranks = {device: rank for device, (rank, _) in self.device_str_to_rank_map.items()}
            groups.open_group(self.group_name, self.mesh_workers, ranks)
            self.instantiated = True

    def instantiate_now(self: Any) -> None:
        """As `instantiate`: there is nothing that could be done later."""
        self.instantiate()

    def destroy(self: Any) -> None:
        """Let the hosts leave the group, if there is one and they are there."""
        if self.instantiated and self.src_mesh.workers and self.dst_mesh.workers:
            for worker in self.mesh_workers:
                worker.destroy_collective_group.remote(self.group_name)
        self.instantiated = False

    def create_resharding_communicators(self: Any) -> None:
        """There is nothing to create for pairs of devices: their hosts are connected."""

    def _compile_send_recv_tasks(self: Any) -> Any:
        """Plan the messages to each device that gets a tile: one from each device that has a part of it.

        Alpa's order names each (tile, device, part), and for each of them alpa plans the messages of all parts: a tile
        of 4 parts would be received 4 times.
        """
        strategy = self.task_spec.strategy
        first_part = {(tile, device): (tile, device, part) for tile, device, part in reversed(strategy.order)}
        strategy.order = [each for each in strategy.order if first_part[each[:2]] == each]
        return compile_send_recv_tasks(self)

    def _add_chunk(spec: Any, chunk: int) -> Chunked:
        """`spec` with one more cut; alpa takes the cuts for a list."""
        return Chunked([*getattr(spec, "chunks", ()), chunk])

    replace(module, _add_chunk, ray=waiting.BoundedRay(module.ray))
    replace_in_class(module.CollectiveGroup, instantiate, instantiate_now, destroy)
    replace_in_class(module.SymbolicReshardingTask, create_resharding_communicators, _compile_send_recv_tasks)
    replace_in_class(module.SymbolicBroadcastReshardingTask, create_resharding_communicators)
