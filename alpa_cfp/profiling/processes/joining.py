"""Finds the processes of a mesh for one plan, and connects the first one to all others.

Takes the numbers of the processes in `jax.distributed`, all of which call it; gives the connections. The first process
listens, and puts its address and a secret into the key-value store. Invariants: nothing that arrives is unpickled
before it has shown the secret; the wait ends at its limit; no key and no listener is left, however it ends.
"""

import contextlib
import hmac
import json
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from alpa_cfp.errors import ProcessesError
from alpa_cfp.profiling.meshes.machines import this_machine
from alpa_cfp.profiling.processes.peers import Failed, Peer, end_all
from alpa_cfp.spmd.distributed import coordination

# Until all processes have called `autoshard`: as long as `jax.distributed.initialize` waits.
JOIN_LIMIT_S = 300.0
_SECRET_BYTES = 32
_SIZE = struct.Struct("!I")
# Until a connection has shown the secret, and between two attempts to connect.
_SHOW_LIMIT_S = 10.0
_RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the mesh.

    Attributes:
        process: Its number in `jax.distributed`.
        ip: The address at which the others reach it.
        machine: The identity of its machine.
    """

    process: int
    ip: str
    machine: str

    @classmethod
    def here(cls, process: int) -> "Member":
        """This process."""
        return cls(process, coordination.own_ip(), this_machine())


@dataclass(frozen=True, slots=True)
class Joined:
    """The processes of a mesh while they plan together.

    Attributes:
        own: This process.
        others: The others with their connections: all in the first process, and in the others the first one.
    """

    own: Member
    others: tuple[tuple[Member, Peer], ...]

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The connections."""
        return tuple(peer for _, peer in self.others)


def join(processes: Sequence[int], own: int, limit_s: float | None = None) -> Joined:
    """Connect this process with the others; each of them calls it.

    Args:
        processes: The numbers of all, the first of which is connected to all others.
        own: This process'.
        limit_s: How long to wait for the others; None for `JOIN_LIMIT_S`.

    Raises:
        ProcessesError: `jax.distributed` is not initialised, or some have not come in time.
    """
    if not coordination.is_initialized():
        raise ProcessesError.not_initialized(processes)
    limit_s = JOIN_LIMIT_S if limit_s is None else limit_s
    member = Member.here(own)
    key = f"alpa_cfp/autoshard/{','.join(map(str, processes))}"
    if own == processes[0]:
        return Joined(member, _accepted(key, processes, member, limit_s))
    return Joined(member, (_connected(key, processes, member, limit_s),))


def _accepted(key: str, processes: Sequence[int], own: Member, limit_s: float) -> tuple[tuple[Member, Peer], ...]:
    """The other processes, in order, in the first one."""
    end = time.monotonic() + limit_s
    found: dict[int, tuple[Member, Peer]] = {}
    secret = secrets.token_bytes(_SECRET_BYTES)
    try:
        with socket.create_server((own.ip, 0), backlog=len(processes)) as listener:
            address = {"ip": own.ip, "port": listener.getsockname()[1], "secret": secret.hex()}
            coordination.put(key, json.dumps(address).encode())
            try:
                while len(found) < len(processes) - 1:
                    listener.settimeout(max(0.001, end - time.monotonic()))
                    try:
                        connected, _ = listener.accept()
                    except TimeoutError:
                        missing = [each for each in processes[1:] if each not in found]
                        raise ProcessesError.not_together(processes, missing, limit_s) from None
                    if (came := _welcomed(connected, secret)) is not None:
                        member, _ = came
                        found[member.process] = came
            finally:
                coordination.delete(key)
    except BaseException as error:
        end_all([peer for _, peer in found.values()], Failed.by(own.process, error))
        raise
    return tuple(found[process] for process in processes[1:])


def _welcomed(connected: socket.socket, secret: bytes) -> tuple[Member, Peer] | None:
    """The process that has connected; None if it does not show the secret, and is closed."""
    connected.settimeout(_SHOW_LIMIT_S)
    with contextlib.suppress(OSError, struct.error, ValueError, TypeError):
        if hmac.compare_digest(_read(connected, _SECRET_BYTES), secret):
            (size,) = _SIZE.unpack(_read(connected, _SIZE.size))
            member = Member(**json.loads(_read(connected, size)))
            return member, Peer(member.process, connected)
    connected.close()
    return None


def _read(connected: socket.socket, size: int) -> bytes:
    """So many bytes, or fewer if the connection ends before."""
    data = b""
    while len(data) < size and (more := connected.recv(size - len(data))):
        data += more
    return data


def _connected(key: str, processes: Sequence[int], own: Member, limit_s: float) -> tuple[Member, Peer]:
    """The first process, in another one."""
    end = time.monotonic() + limit_s
    while (left_s := end - time.monotonic()) > 0:
        found = coordination.get(key, left_s)
        if found is None:
            break
        address = json.loads(found)
        try:
            connected = socket.create_connection((address["ip"], address["port"]), _SHOW_LIMIT_S)
        except OSError:  # it is of a wait that is over by now
            time.sleep(_RETRY_S)
            continue
        introduction = json.dumps(asdict(own)).encode()
        connected.sendall(bytes.fromhex(address["secret"]) + _SIZE.pack(len(introduction)) + introduction)
        return Member(processes[0], address["ip"], ""), Peer(processes[0], connected)
    raise ProcessesError.not_together(processes, processes[:1], limit_s)
