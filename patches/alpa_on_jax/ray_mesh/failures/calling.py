"""Call a function in the process of each host of a mesh, with the mesh's backend.

Takes a function that every host can import, or that Ray can send, and what it is called with; gives back what each
host answered. The backend is a `HostClient`: what is compiled with it (`MeshExecutable(backend, module)`) runs on the
whole mesh, and its `run` and `runner_with_dummy_inputs` are those of any mesh. Invariant: the hosts are called
together, after all that they were asked for before.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from alpa_on_jax.ray_mesh.failures import ending, waiting

Answer = TypeVar("Answer")


def call_on_hosts(mesh: Any, function: Callable[..., Answer], *args: Any, limit_s: float | None = None) -> list[Answer]:
    """What `function(backend, *args)` gives on each host, in their order.

    The function must do the same on each: run the same programs in the same order. Where it does not, the hosts wait
    for each other, until the mesh is ended for it.

    Args:
        mesh: Alpa's `DistributedPhysicalDeviceMesh`.
        function: What to call.
        limit_s: How long to wait for all of them; without a limit by default.

    Raises:
        errors.MeshEndedError: the mesh has ended.
        errors.MeshLostError: a host is gone or hangs; the mesh has been ended.
        ray.exceptions.GetTimeoutError: they did not all answer in time. They still do what they were asked for.
    """
    ending.check_not_ended(mesh)
    return waiting.get([worker.call.remote(function, *args) for worker in mesh.workers], timeout=limit_s)
