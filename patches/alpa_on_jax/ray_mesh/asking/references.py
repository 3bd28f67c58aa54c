"""Ask hosts and wait for their answers, whether they are Ray actors or threads of this process.

Invariant: Ray is not imported where no host is an actor of it.
"""

import sys
from collections.abc import Sequence
from typing import Any

from alpa_on_jax.ray_mesh.asking import actors


def get(references: Any, timeout: float | None = None) -> Any:
    """What one reference stands for, or a list of what several do; see `is_timeout`, `is_of_host` and `is_gone`."""
    if isinstance(references, Sequence) and not references:
        return []
    if _are_here(references):
        return actors.get(references, timeout)
    import ray

    return ray.get(references, timeout=timeout)


def wait(references: Sequence[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
    """Those that are answered, once there are `num_returns` or time is up, and the others."""
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

    # Where this process is no longer connected, Ray has ended what it started; it must not be asked for more.
    if ray.is_initialized():
        ray.kill(worker)


def can_be_asked(workers: Sequence[Any]) -> bool:
    """Whether there are hosts, and a way to ask them. Ray would connect this process anew, to whatever it finds."""
    if not workers:
        return False
    if isinstance(workers[0], actors.Actor):
        return True
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def is_timeout(error: Exception) -> bool:
    """Whether `get` was not answered in time."""
    return _is(error, "GetTimeoutError") or type(error) is TimeoutError


def is_gone(error: Exception) -> bool:
    """Whether a host is not there any more."""
    return _is(error, "RayActorError")


def is_of_host(error: Exception) -> bool:
    """Whether what a host was asked for has failed there."""
    return _is(error, "RayTaskError") or not _is_of_ray(error)


def actor_of(reference: Any) -> Any:
    """Whom a reference waits for, as a key; None if it does not wait for a host."""
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
