"""Find out what is wrong with a mesh, and end one that is lost.

Takes alpa's mesh; asks its hosts whether they are there and how long each has been at one call, and raises if one is
gone, silent or stuck. Invariant: the mesh is the unit of failure. Once a host is lost, all processes of the mesh are
ended, alpa forgets the mesh and the programs on it, and whoever calls a parallelized function next gets a new one.
"""

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.failures import ending
from alpa_on_jax.ray_mesh.failures.host_errors import Health
from alpa_on_jax.ray_mesh.failures.limits import Limits
from alpa_on_jax.ray_mesh.remote_calls import references

# How long the other hosts may still take to answer when one is known to be gone.
_GRACE_S = 2.0
# What ActorDiedError says when not only a process is gone.
_NODE_DIED = "node has died"


def check(mesh: Any) -> None:
    """Hold that every host of a mesh is there and goes on. Says nothing about one that has ended.

    Where a mesh is one of a pipeline, and something has failed on a host of which nobody has heard yet, the others may
    wait for it for ever: then as `settle`.

    Raises:
        errors.MeshLostError: one is not, or does not; the mesh has been ended.
    """
    if not mesh.workers:
        return
    limits = _limits()
    reasons, has_failed = {}, False
    for host, state in zip(mesh.node_ips, _states(mesh.workers, limits), strict=True):
        if isinstance(state, str):
            reasons[host] = state
        elif state.seconds_in_call > limits.call_s:
            reasons[host] = errors.MeshLostError.stuck(state.seconds_in_call)
        has_failed |= isinstance(state, Health) and state.failed is not None
    if reasons:
        lose(mesh, reasons)
    if has_failed and len(together(mesh)) > 1:
        settle(mesh)


def settle(mesh: Any) -> None:
    """Hold, after something has failed on a host, that none waits for it for ever: all come to the end of their work.

    Raises:
        errors.MeshLostError: one does not; the mesh has been ended.
    """
    limits = _limits()
    hosts = [
        (host, worker)
        for each in together(mesh)
        if each.workers
        for host, worker in zip(each.node_ips, each.workers, strict=True)
    ]
    waiting = [worker.settle.remote() for _, worker in hosts]
    # They work together, so that they end at about the same time, whatever they were at before.
    end = time.monotonic() + limits.call_s
    while waiting and not references.wait(waiting, 1, _GRACE_S)[0] and time.monotonic() < end:
        pass
    ended, left = references.wait(waiting, len(waiting), limits.settle_s) if waiting else ([], [])
    if not left and not _any_failed(ended):
        return
    reasons = {hosts[waiting.index(answer)][0]: errors.MeshLostError.LEFT_ALONE for answer in left}
    for (host, _), state in zip(hosts, _states([worker for _, worker in hosts], limits), strict=True):
        what = state if isinstance(state, str) else state.failed
        if what is not None:
            reasons[host] = what
    lose(mesh, reasons)


def _any_failed(answers: Sequence[Any]) -> bool:
    try:
        references.get(list(answers))
    except Exception:  # noqa: BLE001  which is found out by asking the host
        return True
    return False


def lose(mesh: Any, reasons: Mapping[str, str]) -> NoReturn:
    """End a mesh that cannot be used any more, and those of its pipeline, and say why.

    Args:
        mesh: Alpa's `DistributedPhysicalDeviceMesh`.
        reasons: What is wrong with which host.

    Raises:
        errors.MeshLostError: always.
    """
    what = "; ".join(f"host {host}: {reason}" for host, reason in reasons.items())
    for each in together(mesh):
        ending.end(each, by_force=True, limits=_limits())
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


def _states(workers: Sequence[Any], limits: Limits) -> list[Health | str]:
    """How each host is, or what is wrong with it."""
    answers = [worker.health.remote() for worker in workers]
    states: list[Health | str] = [errors.MeshLostError.silent(limits.ping_s)] * len(answers)
    end = time.monotonic() + limits.ping_s
    pending = answers
    while pending and time.monotonic() < end:
        ready, pending = references.wait(pending, 1, max(end - time.monotonic(), 0))
        for answer in ready:
            host = answers.index(answer)
            try:
                states[host] = references.get(answer)
            except Exception as error:
                if not references.is_gone(error):
                    raise
                is_node = _NODE_DIED in str(error)
                states[host] = errors.MeshLostError.NODE_GONE if is_node else errors.MeshLostError.PROCESS_GONE
                # The peers of a host that is gone end themselves; who was silent before is the one to name.
                end = min(end, time.monotonic() + _GRACE_S)
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
