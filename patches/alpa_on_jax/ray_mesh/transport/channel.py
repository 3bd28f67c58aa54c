"""One connection between two ranks: arrays out, arrays in.

Takes a connected stream socket and gives back `send` and `recv` by tag. A thread reads all that arrives, so the other
side's `send` ends without this side having asked; it stops reading while what nobody asked for fills the buffer and no
`recv` waits.

Invariants: an array is complete when `recv` sees it; once the connection has failed every later call fails with the
same reason, except for what had arrived before.
"""

import contextlib
import socket
import struct
import sys
import threading
import time
from collections import deque

import numpy as np

from alpa_on_jax.ray_mesh.transport import message
from alpa_on_jax.ray_mesh.transport.errors import ArrayMismatchError, PeerLostError, TransportTimeoutError
from alpa_on_jax.ray_mesh.transport.limits import Limits

# Reading in parts shows that an array is still arriving. Large, since each part may wait for the interpreter's lock.
_PART_BYTES = 16 << 20
_TIME = struct.Struct("@ll")  # struct timeval
_GONE = "its process has ended, or the connection was cut"
_CLOSED = "it has closed its endpoint"


class Channel:
    """This rank's end of the connection to rank `peer`."""

    def __init__(self, sock: socket.socket, peer: int, limits: Limits):
        self.peer, self._limits = peer, limits
        self._sock = sock
        sock.settimeout(None)  # Python's own limits would be of each call, and shared by both directions.
        _limit(sock, limits.wait_s)
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        # All below is read and written with `_changed` held.
        self._arrived: dict[str, deque[tuple[message.Header, np.ndarray]]] = {}
        self._held_bytes = 0
        self._waiting = 0
        self._arriving: str | None = None
        self._failure: str | None = None
        self._reader = threading.Thread(target=self._read, name=f"arrays from rank {peer}", daemon=True)
        self._reader.start()

    @property
    def path(self) -> str:
        """The kind of the socket: "unix" or "tcp"."""
        return "unix" if self._sock.family == socket.AF_UNIX else "tcp"

    def send(self, tag: str, array: object) -> None:
        """As `Endpoint.send`."""
        head, data = message.encode(tag, array)
        doing = f"sending {tag!r} to"
        with self._sending:
            with self._changed:
                if self._failure is not None:
                    raise self._lost(doing)
            try:
                sent = self._sock.sendmsg([head, data])
                for part, done in ((memoryview(head), sent), (data, sent - len(head))):
                    while done < len(part):
                        done += self._sock.send(part[max(done, 0) :])
            except BlockingIOError:
                why = f"took nothing for {self._limits.wait_s:g} s"
                self._fail(f"it {why}")  # What was sent of the array cannot be taken back.
                raise TransportTimeoutError(
                    f"sending {tag!r} to rank {self.peer}: it {why}. It is stopped, or holds "
                    f"{self._limits.buffer_bytes} bytes that it has not asked for: let it receive "
                    "first, or raise `buffer_bytes`"
                ) from None
            except OSError as error:
                # The reader knows whether that was an orderly end.
                self._reader.join(1.0)
                self._fail(_GONE)
                raise self._lost(doing) from error

    def recv(self, asked: message.Header, dtype: np.dtype) -> np.ndarray:
        """As `Endpoint.recv`."""
        tag = asked.tag
        with self._changed:
            self._wait(tag)
            found, data = self._arrived[tag].popleft()
            if not self._arrived[tag]:
                del self._arrived[tag]
            self._held_bytes -= data.nbytes
            self._changed.notify_all()
        if found != asked:
            raise ArrayMismatchError(tag, self.peer, str(found), str(asked))
        return data.view(dtype).reshape(asked.shape)

    def close(self) -> None:
        """End the connection; what waits on it fails."""
        with self._changed:
            closed, self._failure = self._failure, self._failure or "this rank has closed its endpoint"
            self._changed.notify_all()
        # Not while another thread is inside an array: the other side would take the farewell for a part of it.
        if closed is None and self._sending.acquire(blocking=False):
            with contextlib.suppress(OSError):
                self._sock.send(message.GOODBYE, socket.MSG_DONTWAIT)
            self._sending.release()
        self._shut()
        self._reader.join()
        self._sock.close()

    def _wait(self, tag: str) -> None:
        # Until there is an array for this call. An array that is arriving is waited for as long as it makes progress.
        end = time.monotonic() + self._limits.wait_s
        self._waiting += 1
        self._changed.notify_all()
        try:
            while tag not in self._arrived:
                if self._failure is not None:
                    raise self._lost(f"receiving {tag!r} from")
                left = end - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                elif self._arriving == tag:
                    self._changed.wait()
                else:
                    raise TransportTimeoutError(
                        f"receiving {tag!r} from rank {self.peer}: it did not come within {self._limits.wait_s:g} s. "
                        f"{self._seen()}"
                    )
        finally:
            self._waiting -= 1

    def _seen(self) -> str:
        others = sorted(self._arrived)
        if not others:
            return "Nothing else of that rank waits either: it is stopped, still computing, or never sends this tag"
        shown = ", ".join(map(repr, others[:5])) + (", ..." if len(others) > 5 else "")
        return f"Of that rank have come and not been asked for: {shown}"

    def _lost(self, doing: str) -> PeerLostError:
        return PeerLostError(self.peer, doing, self._failure or _GONE)

    def _fail(self, why: str) -> None:
        with self._changed:
            self._failure = self._failure or why
            self._arriving = None
            self._changed.notify_all()
        self._shut()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):  # it may be shut by the other side
            self._sock.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        why = _GONE
        try:
            while self._read_one():
                pass
            why = _CLOSED
        except BlockingIOError:
            why = f"nothing more of an array came for {self._limits.wait_s:g} s"
        except (EOFError, OSError):
            pass
        except ValueError as error:
            why = str(error)
        except MemoryError:
            why = "this process has no memory for an array that it sent"
        self._fail(why)

    def _read_one(self) -> bool:
        # One message; False if it was the farewell.
        header_bytes, array_bytes = message.decode_lengths(self._bytes(message.LENGTHS_BYTES, idle=True))
        if not header_bytes:
            return False
        header = message.decode_header(self._bytes(header_bytes))
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(array_bytes))
            self._arriving = header.tag
            self._held_bytes += array_bytes
        data = message.empty(array_bytes)
        self._fill(data.data)
        with self._changed:
            self._arriving = None
            self._arrived.setdefault(header.tag, deque()).append((header, data))
            self._changed.notify_all()
        return True

    def _has_room(self, size_bytes: int) -> bool:
        return (
            self._waiting > 0
            or self._held_bytes == 0
            or self._held_bytes + size_bytes <= self._limits.buffer_bytes
            or self._failure is not None
        )

    def _bytes(self, size_bytes: int, *, idle: bool = False) -> memoryview:
        view = memoryview(bytearray(size_bytes))
        self._fill(view, idle=idle)
        return view

    def _fill(self, view: memoryview, *, idle: bool = False) -> None:
        # `idle`: between messages, where nothing may come for as long as it likes.
        done = 0
        while done < len(view):
            try:
                part = view[done : done + _PART_BYTES]
                count = self._sock.recv_into(part, len(part), socket.MSG_WAITALL)
            except BlockingIOError:
                if idle and done == 0:
                    continue
                raise
            if count == 0:
                raise EOFError
            done += count


def _limit(sock: socket.socket, wait_s: float) -> None:
    # Of the kernel's own waits, so that one call moves a whole array; they end with BlockingIOError.
    limit = _TIME.pack(int(wait_s), int(wait_s % 1 * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A machine that vanishes says nothing: it is asked.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
