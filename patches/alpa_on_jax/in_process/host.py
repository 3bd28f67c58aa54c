"""A mesh of some devices of this process, as one host in a thread.

Takes what any host takes. Alpa's timers and traces belong to a process, which a mesh has not for itself here: their
names get the mesh's number.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from alpa.timer import timers, tracer

from alpa_cfp.spmd.compile.devices import Device
from alpa_cfp.spmd.distributed.host_client import HostClient
from alpa_cfp.spmd.distributed.host_place import HostPlace
from alpa_on_jax.ray_mesh.processes.host_worker import HostWorker


class InProcessHost(HostWorker):
    """The one host of a mesh.

    Args:
        place: Which; there is no service.
        devices: The mesh's.
        mesh_id: Alpa's number of the mesh.
        seed: Of the random numbers of programs.
    """

    def __init__(self, place: HostPlace, devices: Sequence[Device], mesh_id: int | None, seed: int):
        super().__init__(place, HostClient(list(devices), seed), mesh_id, seed)
        self._tag = f"@{mesh_id}"

    def put_executable(self, uuid: int, executable_class: Any, *args: Any) -> None:
        super().put_executable(uuid, executable_class, *args)
        executable = self.executables[uuid]
        if hasattr(executable, "exec_timer_name"):
            executable.exec_timer_name += self._tag

    def get_timer(self, name: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The timer of that name of this mesh."""
        return timers(name + self._tag if name + self._tag in timers.timers else name)

    def reset_timer(self, name: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Set it to zero."""
        self.get_timer(name).reset()

    def get_tracer(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """What was traced on this mesh."""
        tag = self._tag + "-"
        events = [event for event in tracer.events if tag in event.name]
        return SimpleNamespace(events=[event._replace(name=event.name.replace(tag, "-")) for event in events])
