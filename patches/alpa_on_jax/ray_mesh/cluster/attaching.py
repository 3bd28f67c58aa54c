"""To which Ray cluster `alpa.init(cluster="ray")` goes: one that it was told of, or one of its own, never one found.

Takes the address that the user gave, if any, and what Ray and the environment say; gives back what to do, and does it.
Invariant: without an address, without `RAY_ADDRESS` and without a cluster that this process is connected to already,
there is an error. Alpa's own code asks Ray for "auto", which is any cluster that runs on the machine, whoever's it is.
"""

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from alpa_on_jax import errors

START_HERE = "local"
_ANSWER_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Attachment:
    """How this process came to be connected to Ray.

    Attributes:
        address: Of the cluster that was joined, `START_HERE` for one of its own, None if it was connected before.
    """

    address: str | None

    def leave(self) -> None:
        """Be no longer connected, if alpa connected this process; a cluster that alpa started ends."""
        if self.address is not None:
            import ray

            ray.shutdown()


def wanted_address(given: str | None, environment: Mapping[str, str], connected_to: str | None) -> str | None:
    """The address to give to Ray; None if this process is connected already.

    Args:
        given: What the user named.
        environment: Of this process.
        connected_to: The address of the cluster that this process is connected to, if any.

    Raises:
        errors.NoClusterError: no cluster was named, or another one than this process is connected to, or one that can
            only be reached through a proxy.
    """
    if connected_to is not None:
        if given not in (None, "auto", connected_to):
            raise errors.NoClusterError.other(str(given), connected_to)
        return None
    address = given or environment.get("RAY_ADDRESS")
    if not address:
        raise errors.NoClusterError.none_named()
    if address.startswith("ray://"):
        raise errors.NoClusterError.by_proxy(address)
    return address


def attach(given: str | None, namespace: str | None, cpu_devices: Callable[[], Mapping[str, int]]) -> Attachment:
    """Connect this process to the cluster that the user named, if it is not connected already.

    Args:
        given: Its address; `START_HERE` to start one of this machine alone; None for that of `RAY_ADDRESS`.
        namespace: Ray's, for the names of actors.
        cpu_devices: The custom resources of a cluster that is started here.

    Raises:
        errors.NoClusterError: see `wanted_address`; or nothing answers there.
        errors.ClusterAuthenticationError: the cluster wants another token.
    """
    address = wanted_address(given, os.environ, _connected_to())
    if address is None:
        return Attachment(None)
    _check_answers(address)
    import ray

    options: dict[str, Any] = {}
    if address == START_HERE:
        options = {"resources": dict(cpu_devices()), "include_dashboard": False}
    with _translated(address):
        ray.init(address=address, namespace=namespace, **options)
    return Attachment(address)


def _connected_to() -> str | None:
    # Who has not imported Ray is not connected, and need not wait for it to hear that no cluster was named.
    ray = sys.modules.get("ray")
    return ray.get_runtime_context().gcs_address if ray is not None and ray.is_initialized() else None


def _check_answers(address: str) -> None:
    """Hold that something listens at `address`, if it is one; Ray asks for minutes, and may end the process then.

    Raises:
        errors.NoClusterError: nothing does.
    """
    ip, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((ip.strip("[]"), int(port)), timeout=_ANSWER_LIMIT_S).close()
    except OSError as error:
        raise errors.NoClusterError.unreachable(address, error) from error


@contextlib.contextmanager
def _translated(address: str) -> Iterator[None]:
    """Ray's errors of connecting, in words that say what to do."""
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError as error:
        raise errors.ClusterAuthenticationError(address) from error
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        # With a wrong token, Ray 2.60 says so in its own output only.
        raise errors.NoClusterError.unanswered(address, error) from error
