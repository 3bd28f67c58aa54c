"""The distributed runtime of JAX, the one place where its private interface is called: the service, and joining it.

Takes, in the driver, an address to listen at, and in a host process, where the service is and which host this is;
gives back the service, and a JAX whose `jax.devices()` are those of all hosts. Invariant: a process joins once, before
it has used any device, and belongs to that mesh until it ends.

Tested with jax 0.10.2, 0.11.2 and 0.12.0.1: `_jax.get_distributed_runtime_service`,
`_jax.get_distributed_runtime_client`, `_jax.make_gloo_tcp_collectives`, `distributed.global_state`,
`xla_bridge.register_backend_factory`. The public `jax.distributed.initialize` puts the service into the first host,
with which the others' news of its death would go, and does not let one choose the address that gloo listens at: its
default is 127.0.0.1, and two hosts hang.
"""

import errno
import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax._src import distributed
from jax._src import xla_bridge as xb
from jax._src.lib import _jax

from alpa_cfp.spmd import errors
from alpa_cfp.spmd.distributed.host_place import HostPlace

_MOST_PORTS_TRIED = 200


@dataclass(frozen=True, slots=True)
class Service:
    """The running service of one mesh.

    Attributes:
        address: Its address, "ip:port".
    """

    address: str
    _service: Any

    def shutdown(self) -> None:
        """End it; processes that are still joined end themselves when they notice."""
        self._service.shutdown()


def start_service(ip: str, ports: Sequence[int], num_hosts: int, heartbeat_s: float, shutdown_s: float) -> Service:
    """Start the service that the hosts of one mesh find each other by, in this process.

    Args:
        ip: The address of this machine that the hosts can reach.
        ports: One of these is used.
        num_hosts: The number of hosts of the mesh.
        heartbeat_s, shutdown_s: see `Limits`.

    Raises:
        errors.NoPortError: none of the ports that were tried is free.
    """
    tried = random.Random().sample(ports, min(len(ports), _MOST_PORTS_TRIED))
    for port in tried:
        if not _is_free(ip, port):
            continue
        address = f"{ip}:{port}"
        try:
            service = _jax.get_distributed_runtime_service(
                address, num_hosts, heartbeat_timeout=round(heartbeat_s), shutdown_timeout=round(shutdown_s)
            )
        except jax.errors.JaxRuntimeError:
            # Somebody else took the port since it was looked at. Anything else is wrong with the next port, too.
            if _is_free(ip, port):
                raise
            continue
        return Service(address, service)
    raise errors.NoPortError(ip, min(ports, default=0), max(ports, default=0))


def _is_free(ip: str, port: int) -> bool:
    """Whether this process could listen there.

    Raises:
        OSError: `ip` is no address of this machine.
    """
    with socket.socket() as listener:
        # As the service does: a port that an earlier service has just left is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((ip, port))
            listener.listen()
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def join(place: HostPlace) -> Any:
    """Make this process a host of a mesh; gives back its end of the runtime, which has `shutdown()`.

    `jax.devices()` waits until all hosts have come so far.
    """
    jax.config.update("jax_platforms", place.platform)
    jax.config.update("jax_enable_x64", place.wide)
    if place.platform == "cpu":
        jax.config.update("jax_num_cpu_devices", place.num_devices)
    client = _jax.get_distributed_runtime_client(
        place.service,
        place.host,
        init_timeout=round(place.connect_s),
        heartbeat_timeout=round(place.heartbeat_s),
        shutdown_timeout=round(place.shutdown_s),
        use_compression=True,
        # The process ends with its mesh, by whatever way, and must not wait for the others then.
        shutdown_on_destruction=False,
    )
    client.connect()
    # Where the GPU plugin finds the other hosts.
    state = distributed.global_state
    state.client, state.process_id, state.num_processes = client, place.host, place.num_hosts
    if place.platform == "cpu" and place.num_hosts == 1:
        # Its devices meet within the process; gloo lets them do so through sockets.
        jax.config.update("jax_cpu_collectives_implementation", None)
    elif place.platform == "cpu":

        def make_client() -> Any:
            collectives = _jax.make_gloo_tcp_collectives(distributed_client=client, hostname=place.ip)
            return xb.make_cpu_client(collectives)

        xb.register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)
    return client


def devices_of_all_hosts() -> list[Any]:
    """The devices of the mesh, host by host, in the same order on each."""
    return sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
