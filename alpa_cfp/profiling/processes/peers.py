"""Connections between the processes that plan together.

Takes connected sockets; gives values that go pickled in both directions, each on a channel, so that the events of one
call are not taken for those of another. Channel 0 is always open. Invariants: no wait is longer than the other process
is there and not silent, nor does a send take longer than that; what was sent before `close` arrives.
"""

import contextlib
import os
import pickle
import queue
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alpa_cfp.profiling.process.protocol import MessageConnection

# Each process says at least so often that it is there, and is lost when it was silent for so long. A process can be
# silent for a while, where a pass of MLIR keeps Python from running.
BEAT_S = 5.0
SILENCE_S = 120.0
# Until the other process has taken what was sent last.
CLOSE_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Failed:
    """The process cannot go on, and ends the connection.

    Attributes:
        process: The process in which the error was raised.
        kind: The error's class.
        message: Its text.
        error: The error, pickled, where another process can raise it, too.
    """

    process: int
    kind: str
    message: str
    error: bytes | None = None

    @classmethod
    def by(cls, process: int, error: BaseException) -> "Failed":
        """What the other processes are told of an error."""
        return cls(process, type(error).__name__, str(error), _pickled(error))

    def original(self) -> BaseException | None:
        """The error, if it is one of this package."""
        return None if self.error is None else pickle.loads(self.error)


def _pickled(error: BaseException) -> bytes | None:
    """An error of this package that is the same after pickling; others may be of the user's own modules."""
    if not type(error).__module__.startswith("alpa_cfp."):
        return None
    try:
        data = pickle.dumps(error)
        again = pickle.loads(data)
    except Exception:  # noqa: BLE001  anything can go wrong in the `__reduce__` of an error
        return None
    return data if type(again) is type(error) and str(again) == str(error) else None


class PeerLostError(Exception):
    """The other process is gone, or silent, or has failed.

    Attributes:
        process: The process.
        reason: What has become of it.
        failure: What it has said, if it has failed.
    """

    def __init__(self, process: int, reason: str, failure: Failed | None = None) -> None:
        super().__init__(f"process {process}: {reason}")
        self.process, self.reason, self.failure = process, reason, failure


class ChannelShutError(Exception):
    """The channel was shut while something was awaited on it."""


class Peer:
    """Another process of those that plan together.

    Args:
        process: Its number in `jax.distributed`.
        connected: The socket; closed by `close`.
        silence_s: How long it may be silent.
        beat_s: How often it is told that this process is there.
    """

    def __init__(
        self, process: int, connected: socket.socket, silence_s: float = SILENCE_S, beat_s: float = BEAT_S
    ) -> None:
        self.process, self._silence_s, self._beat_s = process, silence_s, beat_s
        self.lost: PeerLostError | None = None
        connected.setblocking(True)
        # A read or write in the middle of a message, too.
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connected.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", max(1, round(silence_s)), 0))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._connection = MessageConnection(os.dup(connected.fileno()))
        self._sending, self._changing = threading.Lock(), threading.Lock()
        self._channels: dict[int, queue.SimpleQueue[Any]] = {0: queue.SimpleQueue()}
        self._ending = threading.Event()
        # Two, so that this process always hears, also while the other one does not.
        self._hearing = threading.Thread(target=self._hear, name=f"hears process {process}", daemon=True)
        self._beating = threading.Thread(target=self._beat, name=f"tells process {process}", daemon=True)
        self._hearing.start()
        self._beating.start()

    def open(self, channel: int) -> None:
        """Keep what arrives on a channel from now on."""
        with self._changing:
            arrived = self._channels[channel] = queue.SimpleQueue()
            if self.lost is not None:
                arrived.put(self.lost)

    def shut(self, channel: int) -> None:
        """Drop what arrives on a channel from now on; who still waits there gets a `ChannelShutError`."""
        with self._changing:
            arrived = self._channels.pop(channel, None)
        if arrived is not None:
            arrived.put(ChannelShutError())

    def send(self, channel: int, value: Any) -> None:
        """Send a value.

        Raises:
            PeerLostError: it is lost.
        """
        if self.lost is not None:
            raise self.lost
        self._send((channel, value))
        if self.lost is not None:
            raise self.lost

    def receive(self, channel: int = 0) -> Any:
        """Wait for a value.

        Raises:
            PeerLostError: it is lost.
            ChannelShutError: the channel is shut.
        """
        with self._changing:
            arrived = self._channels.get(channel)
        value = ChannelShutError() if arrived is None else arrived.get()
        if isinstance(value, PeerLostError | ChannelShutError):
            if arrived is not None:
                arrived.put(value)  # for the next call
            raise value
        return value

    def end(self) -> None:
        """Send nothing more; the other process hears of it when it has taken all that was sent."""
        self._ending.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self, limit_s: float = CLOSE_LIMIT_S) -> None:
        """As `end`; then wait until the other process has ended its side, too, and end the connection.

        Closing before that could take back what is on its way.
        """
        self.end()
        is_gone = self.lost is not None and self.lost.failure is None
        self._hearing.join(0 if is_gone else limit_s)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._hearing.join()
        self._beating.join()
        self._connection.close()
        self._socket.close()

    def _send(self, message: tuple[int, Any] | None) -> None:
        try:
            with self._sending:
                self._connection.send(message)
        except OSError as error:
            self._lose(self._reason(error))

    def _beat(self) -> None:
        while not self._ending.wait(self._beat_s) and self.lost is None:
            self._send(None)

    def _hear(self) -> None:
        heard = time.monotonic()
        while True:
            try:
                arrived = self._connection.poll(self._beat_s)
                message = self._connection.recv() if arrived else None
            except (OSError, EOFError) as error:
                self._lose(self._reason(error))
                return
            now = time.monotonic()
            if arrived:
                heard = now
            elif now - heard > self._silence_s:
                self._lose(f"it was silent for {self._silence_s:g} s")
                return
            if message is not None:
                channel, value = message
                if isinstance(value, Failed):
                    self._lose(f"{value.kind}: {value.message}", value)
                else:
                    with self._changing:
                        if channel in self._channels:
                            self._channels[channel].put(value)

    def _lose(self, reason: str, failure: Failed | None = None) -> None:
        with self._changing:
            if self.lost is None:
                self.lost = PeerLostError(self.process, reason, failure)
                for arrived in self._channels.values():
                    arrived.put(self.lost)

    def _reason(self, error: OSError | EOFError) -> str:
        if isinstance(error, BlockingIOError):  # a limit of the socket
            return f"it was silent for {self._silence_s:g} s"
        return "it ended, or its machine cannot be reached"


def end_all(peers: Sequence[Peer], last: Any) -> None:
    """Send a last value to all that are not lost, and end the connections."""
    for peer in peers:
        with contextlib.suppress(PeerLostError):
            peer.send(0, last)
        peer.end()
    end = time.monotonic() + CLOSE_LIMIT_S
    for peer in peers:
        peer.close(max(0.0, end - time.monotonic()))
