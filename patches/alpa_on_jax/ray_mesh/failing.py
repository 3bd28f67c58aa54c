"""Find out what is wrong with a mesh, and end one that is lost.

Takes alpa's mesh; asks its hosts whether they are there and how long each has been at one call, and raises if one is
gone, silent or stuck. Invariant: the mesh is the unit of failure. Once a host is lost, all processes of the mesh are
ended, alpa forgets the mesh and the programs on it, and whoever calls a parallelized function next gets a new one.
"""

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from alpa_on_jax import errors
from alpa_on_jax.ray_mesh import launching
from alpa_on_jax.ray_mesh.limits import Limits

# How long the other hosts may still take to answer when one is known to be gone.
_GRACE_S = 2.0
# What ActorDiedError says when not only a process is gone.
_NODE_DIED = "node has died"


def check(mesh: Any) -> None:
    """Hold that every host of a mesh is there and goes on. Says nothing about one that has ended.

    Raises:
        errors.MeshLostError: one is not, or does not; the mesh has been ended.
    """
    workers = mesh.workers
    if not workers:
        return
    limits: Limits = _limits()
    reasons = {}
    for host, state in enumerate(_states(workers, limits)):
        if isinstance(state, str):
            reasons[host] = state
        elif state > limits.call_s:
            reasons[host] = errors.MeshLostError.stuck(state)
    if reasons:
        lose(mesh, reasons)


def settle(mesh: Any) -> None:
    """Hold, after something has failed on a host, that none waits for it for ever: all come to the end of their work.

    Raises:
        errors.MeshLostError: one does not; the mesh has been ended.
    """
    import ray
    from ray.exceptions import RayActorError

    workers = mesh.workers
    if not workers:
        return
    waiting = [worker.settle.remote() for worker in workers]
    # They do the same, so that they end at about the same time, whatever they were at before.
    while not (ended := ray.wait(waiting, num_returns=1, timeout=_GRACE_S)[0]):
        check(mesh)
    _, left = ray.wait(waiting, num_returns=len(waiting), timeout=_limits().settle_s)
    try:
        ray.get(ended)
    except RayActorError:
        check(mesh)
    if left:
        check(mesh)
        lose(mesh, {waiting.index(reference): errors.MeshLostError.LEFT_ALONE for reference in left})


def lose(mesh: Any, reasons: dict[int, str]) -> NoReturn:
    """End a mesh that cannot be used any more, and say why.

    Args:
        mesh: Alpa's `DistributedPhysicalDeviceMesh`.
        reasons: What is wrong with which host.

    Raises:
        errors.MeshLostError: always.
    """
    what = "; ".join(f"host {mesh.node_ips[host]}: {reason}" for host, reason in reasons.items())
    for each in together(mesh):
        launching.end(each, by_force=True, limits=_limits())
        each.operation_executables.clear()
        each.lost = what
        _forget(each)
    raise errors.MeshLostError.of(mesh.node_ips, what)


def together(mesh: Any) -> list[Any]:
    """The meshes that live and end with a mesh: those of its pipeline, or itself."""
    group = getattr(mesh, "group", None)
    return [mesh] if group is None else list(group.meshes)


def _limits() -> Limits:
    from alpa.global_env import global_config

    config: Any = global_config
    return config.host_limits


def _states(workers: Sequence[Any], limits: Limits) -> list[float | str]:
    """Of each host the seconds that it has been at its present call, or what is wrong with it."""
    import ray
    from ray.exceptions import RayActorError, RayError

    answers = [worker.seconds_in_call.remote() for worker in workers]
    states: list[float | str] = [errors.MeshLostError.silent(limits.ping_s)] * len(answers)
    end = time.monotonic() + limits.ping_s
    pending = answers
    while pending and time.monotonic() < end:
        ready, pending = ray.wait(pending, num_returns=1, timeout=max(end - time.monotonic(), 0))
        for answer in ready:
            host = answers.index(answer)
            try:
                states[host] = ray.get(answer)
            except RayActorError as error:
                states[host] = (
                    errors.MeshLostError.NODE_GONE if _NODE_DIED in str(error) else errors.MeshLostError.PROCESS_GONE
                )
                # The peers of a host that is gone end themselves; who was silent before is the one to name.
                end = min(end, time.monotonic() + _GRACE_S)
            except RayError as error:
                states[host] = str(error).strip().rpartition("\n")[2]
    return states


def _forget(mesh: Any) -> None:
    """Let alpa make another mesh where it would use this one, and compile for that."""
    device_mesh, api = sys.modules["alpa.device_mesh"], sys.modules["alpa.api"]
    if device_mesh.get_global_physical_mesh() is mesh:
        device_mesh.set_global_physical_mesh(None)
    with contextlib.suppress(AttributeError):
        if mesh.parent.launched_physical_mesh is mesh:
            mesh.parent.launched_physical_mesh = None
    group = getattr(mesh, "group", None)
    if group is not None and group.parent.launched_physical_mesh_group is group:
        group.parent.launched_physical_mesh_group = None
    api.clear_executable_cache()
