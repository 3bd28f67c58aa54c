"""Which transport a rank uses."""

from typing import Any

from alpa_on_jax.ray_mesh.transport import nccl
from alpa_on_jax.ray_mesh.transport.interface import Limits, Listener
from alpa_on_jax.ray_mesh.transport.tcp import TcpListener


def best(ip: str, limits: Limits = Limits(), *, device: Any = None) -> Listener:  # noqa: B008  (frozen)
    """A listener of the fastest transport that works for this rank.

    NCCL between two ranks that are one GPU each and that cupy can use; its address says so to the others. Else sockets:
    Unix sockets within a machine and TCP beyond it.

    Args:
        ip: The address of this machine to listen on.
        limits: Of waits and buffers.
        device: The `jax.Device` that the rank stands for, if it is one GPU.
    """
    listener = TcpListener(ip, limits)
    if device is not None and nccl.usable(device):
        return nccl.NcclListener(listener, nccl.CupyCalls(device), limits)
    return listener
