"""Arrays over TCP, and over Unix sockets between processes of one machine.

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
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from alpa_on_jax.ray_mesh.transport import handshake, message
from alpa_on_jax.ray_mesh.transport.channel import Channel
from alpa_on_jax.ray_mesh.transport.errors import RankError, TokenError, TransportError, TransportTimeoutError
from alpa_on_jax.ray_mesh.transport.interface import Address, Limits

_PROOF_S = 10.0  # What connects has this long to prove itself.
_UNPROVEN = 32  # So many may be at it at once; more are hung up on, and ranks among them connect again.
_RETRY_S = 0.05
_TOKEN_BYTES = 16
_LOCAL_PREFIX = "\0alpa_on_jax.transport."


class TcpListener:
    """A rank's address; see `Listener`."""

    def __init__(self, ip: str, limits: Limits = Limits(), *, local: bool = True):  # noqa: B008  (frozen)
        """Listen on `ip`, an address of this machine.

        Args:
            ip: IPv4 or IPv6, no name.
            limits: Of the endpoint too.
            local: Whether processes of this machine connect by a Unix socket.

        Raises:
            OSError: The machine does not have the address.
        """
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
        self._address = Address(ip, self._listening[0].getsockname()[1], name)

    @property
    def address(self) -> Address:
        """To be told to all ranks."""
        return self._address

    def open(self, rank: int, addresses: Sequence[Address], token: bytes) -> "TcpEndpoint":
        """As `Listener.open`."""
        addresses = tuple(addresses)
        if not 0 <= rank < len(addresses) or addresses[rank] != self._address:
            raise RankError(
                f"rank {rank} of {len(addresses)} listens at {self._address}, which must be the entry of that rank in "
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
            with _Accepting(self._listening, token, rank, len(addresses)) as accepting:
                sockets |= accepting.until(end, self._limits.open_s)
        except BaseException:
            for sock in sockets.values():
                sock.close()
            raise
        finally:
            self.close()
        return TcpEndpoint(rank, {peer: Channel(sock, peer, self._limits) for peer, sock in sockets.items()})

    def close(self) -> None:
        """As `Listener.close`."""
        for listening in self._listening:
            listening.close()


class TcpEndpoint:
    """A rank connected to all others by sockets; see `Endpoint`."""

    def __init__(self, rank: int, channels: Mapping[int, Channel]):
        self._rank, self._channels = rank, dict(channels)

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def world(self) -> int:
        """The number of ranks."""
        return len(self._channels) + 1

    @property
    def paths(self) -> dict[int, str]:
        """How each other rank is reached: "unix" or "tcp"."""
        return {peer: channel.path for peer, channel in self._channels.items()}

    def send(self, tag: str, array: Any, to: int) -> None:
        """As `Endpoint.send`."""
        self._channel(to).send(tag, array)

    def recv(
        self, tag: str, shape: Sequence[int], dtype: DTypeLike, source: int, *, into: np.ndarray | None = None
    ) -> np.ndarray:
        """As `Endpoint.recv`."""
        asked = message.header(tag, shape, dtype)
        return self._channel(source).recv(asked, message.native(np.dtype(dtype)), into)

    def close(self) -> None:
        """As `Endpoint.close`."""
        for channel in self._channels.values():
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _channel(self, peer: int) -> Channel:
        if peer not in self._channels:
            others = sorted(self._channels)
            raise RankError(f"rank {self._rank} cannot send to or receive from {peer}: the others are {others}")
        return self._channels[peer]


class _Accepting:
    """Takes in the higher ranks, each connection in a thread of its own, so that none can hold up another."""

    def __init__(self, listening: Sequence[socket.socket], token: bytes, rank: int, world: int):
        self._listening, self._token, self._rank, self._world = listening, token, rank, world
        self._lock = threading.Lock()
        self._taken: dict[int, socket.socket] = {}
        self._unproven: set[socket.socket] = set()
        self._refused = 0
        self._over = False
        self._wake, self._woken = socket.socketpair()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._over = True
            for sock in self._unproven:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            if kind is not None:
                for sock in self._taken.values():
                    sock.close()
            self._wake.close()
        self._woken.close()

    def until(self, end: float, limit_s: float) -> dict[int, socket.socket]:
        """The connections of all higher ranks, at the latest at `end` (of `time.monotonic`)."""
        expected = range(self._rank + 1, self._world)
        while True:
            with self._lock:
                if len(self._taken) == len(expected):
                    return self._taken
                missing = [peer for peer in expected if peer not in self._taken]
                refused = self._refused
            left = end - time.monotonic()
            if left <= 0:
                raise TransportTimeoutError(
                    f"rank {self._rank}: not connected within {limit_s:g} s: ranks {missing}. Their processes have not "
                    f"called `open`, or cannot reach {self._listening[0].getsockname()[:2]} ({refused} connections "
                    "were refused because they did not prove that they know the token)"
                )
            ready, _, _ = select.select([*self._listening, self._woken], [], [], left)
            for sock in ready:
                if sock is self._woken:
                    sock.recv(64)
                else:
                    self._accept(sock)

    def _accept(self, listening: socket.socket) -> None:
        try:
            sock, _ = listening.accept()
        except OSError:  # it has hung up already
            return
        with self._lock:
            crowded = len(self._unproven) >= _UNPROVEN
            if not crowded:
                self._unproven.add(sock)
        if crowded:
            sock.close()
        else:
            threading.Thread(target=self._prove, args=(sock,), name="handshake", daemon=True).start()

    def _prove(self, sock: socket.socket) -> None:
        try:
            peer = handshake.answer(sock, self._token, self._rank, self._world, _PROOF_S)
        except (handshake.RefusedError, OSError):
            peer = None
        with self._lock:
            self._unproven.discard(sock)
            taken = peer is not None and peer not in self._taken and not self._over
            if taken and peer is not None:
                try:
                    handshake.welcome(sock)
                except OSError:
                    taken = False
                else:
                    self._taken[peer] = sock
            if not taken:
                self._refused += 1
                sock.close()
            if not self._over:
                self._wake.send(b"!")


def _connect(address: Address, token: bytes, rank: int, peer: int, world: int, end: float) -> socket.socket:
    # Tries again until `end`: the listener may be crowded by others for a while.
    why = "nothing answers"
    while (left := end - time.monotonic()) > 0:
        sock = None
        try:
            sock = _reach(address, left)
            handshake.ask(sock, token, rank, peer, world, max(end - time.monotonic(), _RETRY_S))
        except handshake.WrongTokenError:
            _close(sock)
            raise TokenError(peer, str(address)) from None
        except (handshake.RefusedError, OSError) as error:
            _close(sock)
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


def _close(sock: socket.socket | None) -> None:
    if sock is not None:
        sock.close()
