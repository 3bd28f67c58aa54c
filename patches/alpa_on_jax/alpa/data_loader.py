"""Replacements in `alpa.data_loader`: what a loader reads, and forgetting a loader whose mesh has ended."""

import itertools
import sys
from types import ModuleType
from typing import Any

import jax
import numpy as np

from alpa_on_jax.ray_mesh.remote_calls import references
from alpa_on_jax.replacing import replace_in_class


def apply(module: ModuleType) -> None:
    """Replace how a host reads batches ahead, and what Python calls last for a loader."""
    # Kept here, because the names of modules are gone when Python ends.
    is_finalizing, are_reachable = sys.is_finalizing, references.are_reachable

    def __del__(self: Any) -> None:
        """Let the hosts forget the loader, as long as there are any to tell."""
        mesh = getattr(self, "physical_mesh", None)
        if mesh is None or is_finalizing() or not are_reachable(mesh.workers):
            return
        for worker in mesh.workers:
            worker.delete_data_loader.remote(self.uuid)

    def enqueue(self: Any, num_batches: int) -> None:
        """Read batches ahead and put this host's parts of them on its devices."""
        for arrays in itertools.islice(self.input_iter, num_batches):
            self.queue.append(
                [
                    # A copy, because a device of the CPU may go on using the memory, and whoever reads may write the
                    # next batch there.
                    [
                        jax.device_put(np.array(array[index]), device)
                        for index, device in zip(indices, self.devices, strict=True)
                    ]
                    for array, indices in zip(arrays, self.shard_indices, strict=True)
                ]
            )

    replace_in_class(module.MeshDriverDataLoader, __del__)
    replace_in_class(module.MeshWorkerDataLoader, enqueue)
