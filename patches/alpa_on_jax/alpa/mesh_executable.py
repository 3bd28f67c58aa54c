"""Replacements in `alpa.mesh_executable`: waiting for the devices of a local mesh, and forgetting programs."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from alpa_on_jax.replacing import replace, replace_in_class


def apply(module: ModuleType) -> None:
    """Replace the function that alpa's timers wait with, and what happens when an executable goes."""

    def get_sync_func_driver(physical_mesh: Any) -> Callable[[], None]:
        """A function that waits until the mesh has nothing left to do."""
        return physical_mesh.sync_workers

    def __del__(self: Any) -> None:
        """Forget the program on remote workers; a local mesh has none, and at exit alpa's classes may be gone."""
        forget = getattr(getattr(self, "physical_mesh", None), "delete_remote_executable", None)
        if forget is not None:
            forget(self.exec_uuid)

    replace(module, get_sync_func_driver)
    replace_in_class(module.MeshDriverExecutable, __del__)
