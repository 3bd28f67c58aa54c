"""Results of remote calls, whether the hosts are Ray actors or threads of this process.

Invariant: Ray is imported only if a host is a Ray actor.
"""

import sys
from collections.abc import Sequence
from typing import Any

from alpa_on_jax.ray_mesh.remote_calls import actors


def get(references: Any, timeout: float | None = None) -> Any:
    """The result of one reference, or a list of several; for errors see `is_timeout`, `is_of_host` and `is_gone`."""
    if isinstance(references, Sequence) and not references:
        return []
    if _are_here(references):
        return actors.get(references, timeout)
    import ray

    return ray.get(references, timeout=timeout)


def wait(references: Sequence[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
    """The references with a result, once there are `num_returns` or the time is over, and the others."""
    if _are_here(references):
        return actors.wait(references, num_returns, timeout)
    import ray

    return ray.wait(list(references), num_returns=num_returns, timeout=timeout)


def kill(worker: Any) -> None:
    """End a host."""
    if isinstance(worker, actors.Actor):
        # Its thread may be waiting for another mesh.
        worker.leave_groups.remote()
        actors.end(worker)
        return
    import ray

    # If this process is no longer connected, Ray has ended its actors, and must not be called.
    if ray.is_initialized():
        ray.kill(worker)


def are_reachable(workers: Sequence[Any]) -> bool:
    """Whether there are hosts that can be called; without a connection, Ray would connect to any cluster it finds."""
    if not workers:
        return False
    if isinstance(workers[0], actors.Actor):
        return True
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def is_timeout(error: Exception) -> bool:
    """Whether `get` exceeded its timeout."""
    return _is(error, "GetTimeoutError") or type(error) is TimeoutError


def is_gone(error: Exception) -> bool:
    """Whether a host was lost."""
    return _is(error, "RayActorError")


def is_of_host(error: Exception) -> bool:
    """Whether the call failed on the host."""
    return _is(error, "RayTaskError") or not _is_of_ray(error)


def actor_of(reference: Any) -> Any:
    """A key of the actor that computes a reference; None if no host does."""
    if isinstance(reference, actors.Reference):
        return reference.actor
    return reference.task_id().actor_id() if hasattr(reference, "task_id") else None


def _are_here(references: Any) -> bool:
    first = references if not isinstance(references, Sequence) else references[0] if references else None
    return isinstance(first, actors.Reference)


def _is(error: Exception, name: str) -> bool:
    exceptions = sys.modules.get("ray.exceptions")
    return exceptions is not None and isinstance(error, getattr(exceptions, name))


def _is_of_ray(error: Exception) -> bool:
    return type(error).__module__.startswith("ray.")
