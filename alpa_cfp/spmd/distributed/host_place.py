"""The place of a host process in its mesh, which it gets when it starts.

A plain value. Invariant: nothing is imported for it, so that a process can pass it on without having JAX.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostPlace:
    """The place of a host process in its mesh.

    Attributes:
        service: The address of the mesh's service, "ip:port".
        num_hosts: The number of hosts of the mesh.
        host: This one's number.
        ip: The address of its node, at which the other hosts reach it.
        platform: "cpu" or "cuda".
        num_devices: The number of its devices; virtual ones on "cpu".
        wide: Whether JAX has types of 64 bits there, as in the driver.
        connect_s, heartbeat_s, shutdown_s, call_s: see `Limits`.
    """

    service: str
    num_hosts: int
    host: int
    ip: str
    platform: str
    num_devices: int
    wide: bool
    connect_s: float
    heartbeat_s: float
    shutdown_s: float
    call_s: float = 1800.0
