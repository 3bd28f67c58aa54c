"""Connects the ranks of a group, over TCP, and over Unix sockets between processes of one machine.

Takes an IP address and gives back a `Listener` that listens on it and nothing else, under a port that the system
chooses, and on Linux under a random abstract Unix name. A rank connects to the lower ones and is connected to by the
higher ones. Invariant: what cannot prove that it knows the group's token gets no further than `handshake`, however many
they are, and nothing listens any more once the group is open.

Unix sockets stand here instead of shared memory: between two processes of one machine they are faster than TCP from 1
to 256 MB and, from 16 MB, about as fast as copying into and out of shared memory that exists already
(`python -m benchmarks.transport`), and there is nothing to clean up. At 1 MB a bare copy takes half the time.
"""

import contextlib
import errno
import secrets
import select
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from alpa_on_jax.ray_mesh.transport import handshake
from alpa_on_jax.ray_mesh.transport.channel import Channel
from alpa_on_jax.ray_mesh.transport.endpoint import Endpoint
from alpa_on_jax.ray_mesh.transport.errors import RankError, TokenError, TransportError, TransportTimeoutError
from alpa_on_jax.ray_mesh.transport.limits import Limits

_PROOF_S = 10.0  # What connects has this long to prove itself.
_UNPROVEN = 32  # So many may be at it at once; more are hung up on, and ranks among them connect again.
_LOOK_EVERY_S = 0.005  # While some are at it.
_RETRY_S = 0.05
_TOKEN_BYTES = 16
_LOCAL_PREFIX = "\0alpa_on_jax.transport."


@dataclass(frozen=True, slots=True)
class Address:
    """Where a rank listens.

    Attributes:
        ip: Its IP address, and the only one that it listens on.
        port: Its TCP port.
        local: The name of its Unix socket, which processes of the same machine try first; empty if it has none.
    """

    ip: str
    port: int
    local: str = ""

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


def new_token() -> bytes:
    """A secret for a new group."""
    return secrets.token_bytes(32)


class Listener:
    """A rank that listens and is not yet connected.

    Args:
        ip: An address of this machine to listen on, IPv4 or IPv6, no name.
        limits: Of the endpoint too.
        local: Whether processes of this machine connect by a Unix socket.

    Raises:
        OSError: The machine does not have the address.
    """

    def __init__(self, ip: str, limits: Limits = Limits(), *, local: bool = True):  # noqa: B008  (frozen)
        self._limits = limits
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        self._listening = [socket.create_server((ip, 0), family=family, backlog=128)]
        name = ""
        if local and sys.platform == "linux":  # Abstract names leave no file behind and end with the process.
            name = secrets.token_hex(16)
            unix = socket.socket(socket.AF_UNIX)
            unix.bind(_LOCAL_PREFIX + name)
            unix.listen(128)
            self._listening.append(unix)
        self.address = Address(ip, self._listening[0].getsockname()[1], name)

    def open(self, rank: int, addresses: Sequence[Address], token: bytes) -> Endpoint:
        """Connect to all ranks and stop listening.

        Args:
            rank: This rank; `addresses[rank]` is this listener's.
            addresses: Of all ranks, in order.
            token: The group's secret, of 16 bytes or more: see `new_token`.

        Raises:
            RankError: The rank is not among the addresses, or is another's.
            TokenError: What answers at an address does not know the token.
            TransportTimeoutError: Not all ranks were there within `open_s`.
        """
        if not 0 <= rank < len(addresses) or addresses[rank] != self.address:
            raise RankError(
                f"rank {rank} of {len(addresses)} listens at {self.address}, which must be the entry of that rank in "
                "the addresses of the group"
            )
        if len(token) < _TOKEN_BYTES:
            raise TransportError(
                f"the token has {len(token)} bytes; a secret has {_TOKEN_BYTES} or more: `new_token()`"
            )
        end = time.monotonic() + self._limits.open_s
        sockets: dict[int, socket.socket] = {}
        try:
            for peer in range(rank):
                sockets[peer] = _connect(addresses[peer], token, rank, peer, len(addresses), end)
            self._accept(sockets, rank, len(addresses), token, end)
        except BaseException:
            for sock in sockets.values():
                sock.close()
            raise
        finally:
            self.close()
        return Endpoint(rank, {peer: Channel(sock, peer, self._limits) for peer, sock in sockets.items()})

    def close(self) -> None:
        """Stop listening. Twice is fine."""
        for listening in self._listening:
            listening.close()

    def _accept(self, sockets: dict[int, socket.socket], rank: int, world: int, token: bytes, end: float) -> None:
        # Takes in the higher ranks, each in a thread of its own until it has proven itself, so that none can hold up
        # another.
        proofs: SimpleQueue[tuple[socket.socket, int | None]] = SimpleQueue()
        unproven: dict[socket.socket, threading.Thread] = {}
        refused = 0
        try:
            while missing := [peer for peer in range(rank + 1, world) if peer not in sockets]:
                left = end - time.monotonic()
                if left <= 0:
                    raise TransportTimeoutError(
                        f"rank {rank}: not connected within {self._limits.open_s:g} s: ranks {missing}. Their "
                        f"processes have not called `open`, or cannot reach {self._listening[0].getsockname()[:2]} "
                        f"({refused} connections were refused because they did not prove that they know the token)"
                    )
                ready, _, _ = select.select(self._listening, [], [], min(left, _LOOK_EVERY_S) if unproven else left)
                for listening in ready:
                    sock = _accept_one(listening)
                    if sock is None:
                        continue
                    if len(unproven) >= _UNPROVEN:
                        sock.close()
                        continue
                    work = (sock, token, rank, world, proofs)
                    unproven[sock] = threading.Thread(target=_prove, args=work, name="handshake", daemon=True)
                    unproven[sock].start()
                while not proofs.empty():
                    sock, peer = proofs.get()
                    del unproven[sock]
                    if peer in missing and peer not in sockets and _is_welcomed(sock):
                        sockets[peer] = sock
                    else:
                        refused += 1
                        sock.close()
        finally:
            for sock in unproven:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            for sock, thread in unproven.items():
                thread.join()
                sock.close()


def _accept_one(listening: socket.socket) -> socket.socket | None:
    try:
        return listening.accept()[0]
    except OSError:  # it has hung up already
        return None


def _prove(
    sock: socket.socket, token: bytes, rank: int, world: int, proofs: SimpleQueue[tuple[socket.socket, int | None]]
) -> None:
    try:
        peer = handshake.answer(sock, token, rank, world, _PROOF_S)
    except (handshake.RefusedError, OSError):
        peer = None
    proofs.put((sock, peer))


def _is_welcomed(sock: socket.socket) -> bool:
    try:
        handshake.welcome(sock)
    except OSError:
        return False
    return True


def _connect(address: Address, token: bytes, rank: int, peer: int, world: int, end: float) -> socket.socket:
    # Tries again until `end`: the listener may be crowded by others for a while.
    why = "nothing answers"
    while (left := end - time.monotonic()) > 0:
        sock = None
        try:
            sock = _reach(address, left)
            handshake.ask(sock, token, rank, peer, world, max(end - time.monotonic(), _RETRY_S))
        except BaseException as error:
            if sock is not None:
                sock.close()
            if isinstance(error, handshake.WrongTokenError):
                raise TokenError(peer, str(address)) from None
            if not isinstance(error, handshake.RefusedError | OSError):
                raise
            why = str(error) or "it does not expect this rank"
            time.sleep(min(_RETRY_S, max(end - time.monotonic(), 0)))
        else:
            return sock
    raise TransportTimeoutError(f"rank {rank}: rank {peer} at {address} could not be reached in time: {why}")


def _reach(address: Address, limit_s: float) -> socket.socket:
    if address.local and sys.platform == "linux":
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(limit_s)
        try:
            sock.connect(_LOCAL_PREFIX + address.local)
        except OSError as error:
            sock.close()
            if error.errno != errno.ECONNREFUSED:  # nobody has that name here: it is on another machine
                raise
        else:
            return sock
    return socket.create_connection((address.ip, address.port), limit_s)
