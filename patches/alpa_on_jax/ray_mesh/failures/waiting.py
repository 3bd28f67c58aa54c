"""Wait for what the hosts of a mesh were asked for; a wait that ends, whatever has become of a host.

Takes references to what hosts answer, and gives the answers. It stands in the place of alpa's `ray.get`, which would
wait for a host that hangs for ever, and would leave the other hosts alone with their half of a program when one is
gone. How long a wait takes says nothing: the driver runs ahead of the hosts, so that one value may have to wait for
hundreds of steps. So it is looked at every few seconds whether each host is there, and how long it has been at one
call. Invariant: whoever waits for a mesh of which a host is gone, hangs, or waits for another host for ever hears of
it, and nothing of that mesh is left then.
"""

import time
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

from alpa_on_jax.ray_mesh.failures import failing
from alpa_on_jax.ray_mesh.remote_calls import references as replies

_LOOK_EVERY_S = 5.0

# Whose processes are whose: Ray's number of a process, and alpa's mesh.
_mesh_of_actor: WeakValueDictionary[Any, Any] = WeakValueDictionary()


def watch(mesh: Any, workers: Iterable[Any]) -> None:
    """Let waits for a mesh's processes end when the mesh is lost.

    Args:
        mesh: Alpa's `DistributedPhysicalDeviceMesh`.
        workers: The handles of its processes.
    """
    for worker in workers:
        # What a process is asked for has its number.
        _mesh_of_actor[replies.actor_of(worker.check_alive.remote())] = mesh


def get(references: Any, *, timeout: float | None = None) -> Any:
    """As `ray.get`: what one reference stands for, or a list of what several do.

    Args:
        references: One, or a list.
        timeout: Seconds; without a limit by default, as long as the hosts go on.

    Raises:
        errors.MeshLostError: a host is gone or hangs; the mesh has been ended.
        ray.exceptions.GetTimeoutError: it has taken longer than `timeout`; the hosts go on.
        ray.exceptions.RayError: as `ray.get`. What was asked for has failed; the mesh goes on, unless a host waits for
            the one that failed.
    """
    meshes = _meshes_of(references)
    if not meshes:
        return replies.get(references, timeout)
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = None if end is None else max(end - time.monotonic(), 0.0)
        try:
            return replies.get(references, _LOOK_EVERY_S if left is None else min(left, _LOOK_EVERY_S))
        except Exception as error:
            if replies.is_timeout(error) and (left is None or left > _LOOK_EVERY_S):
                _each(failing.check, meshes)
                continue
            if replies.is_gone(error):
                _each(failing.check, meshes)
            elif replies.is_of_host(error) and not replies.is_timeout(error):
                _each(failing.settle, meshes)
            raise


def _each(function: Callable[[Any], None], meshes: Iterable[Any]) -> None:
    for mesh in meshes:
        function(mesh)


def _meshes_of(references: Any) -> list[Any]:
    """The meshes that are asked and those that these wait for, each once."""
    several = references if isinstance(references, list) else [references]
    found: dict[int, Any] = {}
    for reference in several:
        mesh = _mesh_of_actor.get(replies.actor_of(reference))
        if mesh is not None and id(mesh) not in found:
            found |= {id(each): each for each in failing.together(mesh)}
    return list(found.values())


class BoundedRay(ModuleType):
    """`ray` as a module of alpa sees it: its `get` is the one of this module."""

    def __init__(self, ray: ModuleType) -> None:
        super().__init__(ray.__name__)
        self._ray = ray

    get = staticmethod(get)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ray, name)
