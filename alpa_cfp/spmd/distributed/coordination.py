"""The key-value store of `jax.distributed`, by which the processes of a program find each other.

Takes keys and bytes. Invariant: this is the one place where its private client is used; nothing here changes its state
but the keys that are put and deleted.

Tested with jax 0.10.2 and 0.11.2: `distributed.global_state`, `DistributedRuntimeClient.key_value_set_bytes`,
`.blocking_key_value_get_bytes`, `.key_value_delete`.
"""

import ipaddress
import socket
import time
from typing import Any

import jax
from jax._src import distributed

# A wait in C++ hears of no interrupt.
_WAIT_S = 2.0
# An address of documentation (RFC 5737). A UDP socket that is connected to it sends nothing.
_ELSEWHERE = ("192.0.2.1", 9)


def is_initialized() -> bool:
    """Whether this process has called `jax.distributed.initialize`."""
    return distributed.global_state.client is not None


def put(key: str, value: bytes) -> None:
    """Stores a value; replaces an earlier one."""
    _client().key_value_set_bytes(key, value, allow_overwrite=True)


def get(key: str, limit_s: float) -> bytes | None:
    """Waits for a value; None if there is none after `limit_s` seconds."""
    end = time.monotonic() + limit_s
    while (left_s := end - time.monotonic()) > 0:
        try:
            return _client().blocking_key_value_get_bytes(key, max(1, int(1000 * min(left_s, _WAIT_S))))
        except jax.errors.JaxRuntimeError as error:
            if not str(error).startswith(("DEADLINE_EXCEEDED", "NOT_FOUND")):
                raise
    return None


def delete(key: str) -> None:
    """Removes a key."""
    _client().key_value_delete(key)


def own_ip() -> str:
    """Returns the address of this machine from which the coordinator is reached; other processes reach it there."""
    return ip_towards(str(distributed.global_state.coordinator_address))


def ip_towards(coordinator: str) -> str:
    """Returns the address of this machine from which "host:port" is reached.

    On the machine of the coordinator its name may stand for an address that only this machine has (127.0.1.1). Then it
    is the address from which other machines are reached.
    """
    host, _, port = coordinator.rpartition(":")
    own = _ip_towards(host, int(port))
    is_named = host != "localhost" and not _is_loopback(host)
    if is_named and _is_loopback(own):
        try:
            return _ip_towards(*_ELSEWHERE)
        except OSError:  # there are no others
            return own
    return own


def _ip_towards(host: str, port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect((host, port))
        return sender.getsockname()[0]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _client() -> Any:
    return distributed.global_state.client
