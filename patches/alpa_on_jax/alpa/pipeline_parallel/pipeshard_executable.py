"""Replacements in `alpa.pipeline_parallel.pipeshard_executable`: waits, timing on zeros, ends of what did not start."""

from types import ModuleType
from typing import Any

from alpa_on_jax.ray_mesh.failures import waiting
from alpa_on_jax.replacing import replace, replace_in_class


def apply(module: ModuleType) -> None:
    """Replace how it waits for hosts, and two methods that Alpa 0.2.3 cannot run in these cases."""
    driver, worker = module.PipeshardDriverExecutable, module.PipeshardMeshWorkerExecutable
    original_profile = worker.profile_with_dummy_inputs

    def profile_with_dummy_inputs(self: Any, *args: Any, **options: Any) -> dict[int, tuple[float, float]]:
        """Seconds and GiB of each of the host's programs, by its number.

        Alpa's hosts hand their backend and devices on, as to other executables, which its own method does not take.
        """
        return original_profile(self)

    def __del__(self: Any) -> None:
        """Let the meshes forget the program, if they got it; alpa's takes for granted that they did."""
        uuid = getattr(self, "exec_uuid", None)
        if uuid is not None:
            for mesh in self.mesh_group:
                mesh.delete_remote_executable(uuid)

    replace(module, ray=waiting.BoundedRay(module.ray))
    replace_in_class(worker, profile_with_dummy_inputs)
    replace_in_class(driver, __del__)
