"""Replacements in `alpa.mesh_executable`: waiting for devices and hosts, sending programs, and forgetting them."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.failures import waiting
from alpa_on_jax.replacing import replace, replace_in_class


def apply(module: ModuleType) -> None:
    """Replace the functions that alpa's timers wait with, and what happens when an executable comes and goes."""

    def get_sync_func_driver(physical_mesh: Any) -> Callable[[], None]:
        """A function that waits until the mesh has nothing left to do."""
        return physical_mesh.sync_workers

    def get_sync_func_worker(worker: Any) -> Callable[[], None]:
        """A function that waits until the devices of a host have nothing left to do."""
        return worker.sync

    original_set_executable = module.NormalMeshDriverExecutable._set_executable

    def _set_executable(self: Any, physical_mesh: Any, hlo: Any, stage_plan: Any) -> None:
        """Put the program on the mesh; for hosts it is partitioned here, once, so that all have the same."""
        if isinstance(physical_mesh, module.DistributedPhysicalDeviceMesh) and hlo.is_sharding_annotated():
            hlo = module.run_spmd_partitioner_pass(hlo, physical_mesh.num_devices)
        original_set_executable(self, physical_mesh, hlo, stage_plan)

    def __del__(self: Any) -> None:
        """Forget the program on remote workers; a local mesh has none, and at exit alpa's classes may be gone."""
        forget = getattr(getattr(self, "physical_mesh", None), "delete_remote_executable", None)
        if forget is not None:
            forget(self.exec_uuid)

    original_init = module.GradAccMeshDriverExecutable.__init__

    def __init__(self: Any, *args: Any, **options: Any) -> None:
        """As alpa's own, and a check of what it takes for granted: gradients go from one program to the other."""
        original_init(self, *args, **options)
        # Alpa hands the micro-batches on in this order, and takes them back in the order of those that the loss uses:
        # a batch argument without use must not come before one with.
        self.global_batch_arg_indices = _used_first(self.global_batch_arg_indices, self.accumulate_grad_invar_indices)
        accumulate, apply_grad = self.accumulate_grad_hlo.get_module(), self.apply_grad_hlo.get_module()
        count = len(self.grad_avals)
        if accumulate.partitioned.output_shardings != apply_grad.partitioned.input_shardings[-count:]:
            raise errors.InternalError("the gradients leave accumulate_grad in another sharding than apply_grad takes")

    replace(module, get_sync_func_driver, get_sync_func_worker, ray=waiting.BoundedRay(module.ray))
    replace_in_class(module.NormalMeshDriverExecutable, _set_executable)
    replace_in_class(module.GradAccMeshDriverExecutable, __init__)
    replace_in_class(module.MeshDriverExecutable, __del__)


def _used_first(batch_arguments: Sequence[int], used: Sequence[int]) -> list[int]:
    """The numbers of the batch arguments, those that are among `used` in the order there and before the others."""
    first = [number for number in used if number in batch_arguments]
    return [*first, *(number for number in batch_arguments if number not in first)]
