"""Arrays between GPUs by NCCL, through cupy, with sockets for everything but their bytes.

Takes a `TcpListener` and the calls of cupy for one GPU, and gives back a `Listener` whose endpoint sends and receives
`jax.Array`s of that GPU. cupy is optional and imported only when a GPU is asked about. A rank is one GPU.

For each direction of a pair that is used there is a communicator of two and a stream: both sides may send first, and
NCCL's rule that both sides call in the same order holds, because the header of each array goes through the socket first
and a thread of the receiving rank posts the receives in the order of the headers. Invariant: cupy is called here, in
`usable` and `CupyCalls`, and nowhere else.

Follows cupy's documented interface (cupy.cuda.nccl.NcclCommunicator, version 14); it has not been run on a GPU yet.
"""

import dataclasses
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import ml_dtypes  # noqa: F401  (numpy then knows its dtypes by name)
import numpy as np
from numpy.typing import DTypeLike

from alpa_on_jax.ray_mesh.transport import message
from alpa_on_jax.ray_mesh.transport.errors import (
    ArrayMismatchError,
    DestinationError,
    PeerLostError,
    TransportError,
    TransportTimeoutError,
)
from alpa_on_jax.ray_mesh.transport.interface import Address, Limits
from alpa_on_jax.ray_mesh.transport.tcp import TcpEndpoint, TcpListener

if TYPE_CHECKING:
    import jax

_HEAD_SIZE, _HEAD, _ID = "\0nccl/size", "\0nccl/head", "\0nccl/id"
_SENDS, _RECEIVES = 0, 1  # ranks in a communicator of two
_POLL_S = 50e-6


def usable(device: Any) -> bool:
    """Whether arrays of a `jax.Device` can be sent by NCCL: it is a CUDA GPU and cupy is installed with NCCL."""
    if device.platform not in ("gpu", "cuda"):
        return False
    try:
        import cupy  # pyright: ignore[reportMissingImports]
        from cupy.cuda import nccl  # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    return bool(cupy.cuda.is_available()) and hasattr(nccl.NcclCommunicator, "send")


class Calls(Protocol):
    """What is asked of a GPU."""

    def unique_id(self) -> bytes:
        """A name for a new communicator."""
        ...

    def communicator(self, unique_id: bytes, rank: int) -> Any:
        """Join a communicator of two; returns when both have."""
        ...

    def start_send(self, communicator: Any, array: "jax.Array", to: int) -> Callable[[], bool]:
        """Start to send the bytes of an array; the result says whether it is done."""
        ...

    def start_recv(
        self, communicator: Any, head: message.Header, source: int
    ) -> tuple[Callable[[], bool], "Callable[[], jax.Array]"]:
        """Start to receive an array; the results say whether it is done, and give the array then."""
        ...

    def put(self, array: Any) -> "jax.Array":
        """The array on this GPU."""
        ...

    def abort(self, communicator: Any) -> None:
        """End what is under way in a communicator, and the communicator."""
        ...


class CupyCalls:
    """The calls of cupy for one GPU."""

    def __init__(self, device: Any):
        import cupy  # pyright: ignore[reportMissingImports]
        import jax
        from cupy.cuda import nccl  # pyright: ignore[reportMissingImports]

        self._cupy, self._nccl, self._jax, self._jax_device = cupy, nccl, jax, device
        self._device = cupy.cuda.Device(device.local_hardware_id)

    def unique_id(self) -> bytes:
        """As `Calls.unique_id`."""
        return self._nccl.get_unique_id()

    def communicator(self, unique_id: bytes, rank: int) -> Any:
        """As `Calls.communicator`."""
        with self._device:
            return self._nccl.NcclCommunicator(2, unique_id, rank), self._cupy.cuda.Stream(non_blocking=True)

    def start_send(self, communicator: Any, array: "jax.Array", to: int) -> Callable[[], bool]:
        """As `Calls.start_send`."""
        group, stream = communicator
        with self._device, stream:
            data = self._cupy.ascontiguousarray(self._cupy.from_dlpack(carried(array)))
            group.send(data.data.ptr, data.nbytes, self._nccl.NCCL_UINT8, to, stream.ptr)
            return self._done(stream, data)

    def start_recv(
        self, communicator: Any, head: message.Header, source: int
    ) -> tuple[Callable[[], bool], "Callable[[], jax.Array]"]:
        """As `Calls.start_recv`."""
        group, stream = communicator
        dtype = np.dtype(head.dtype)
        with self._device, stream:
            data = self._cupy.empty(head.shape, _carrier(dtype))
            group.recv(data.data.ptr, data.nbytes, self._nccl.NCCL_UINT8, source, stream.ptr)
            return self._done(stream, data), lambda: self._jax.dlpack.from_dlpack(data).view(dtype)

    def put(self, array: Any) -> "jax.Array":
        """As `Calls.put`."""
        return self._jax.block_until_ready(self._jax.device_put(array, self._jax_device))

    def abort(self, communicator: Any) -> None:
        """As `Calls.abort`."""
        communicator[0].abort()

    def _done(self, stream: Any, data: Any) -> Callable[[], bool]:
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record(stream)

        def done() -> bool:
            _ = data  # lives as long as the question is asked
            return bool(event.done)

        return done


class NcclListener:
    """The address of a rank that is one GPU; see `Listener`."""

    def __init__(self, listener: TcpListener, calls: Calls, limits: Limits):
        self._listener, self._calls, self._limits = listener, calls, limits

    @property
    def address(self) -> Address:
        """To be told to all ranks."""
        return dataclasses.replace(self._listener.address, nccl=True)

    def open(self, rank: int, addresses: Sequence[Address], token: bytes) -> "NcclEndpoint":
        """As `Listener.open`."""
        plain = [
            dataclasses.replace(address, nccl=False) if index == rank else address
            for index, address in enumerate(addresses)
        ]
        endpoint = self._listener.open(rank, plain, token)
        peers = [peer for peer, address in enumerate(addresses) if peer != rank and address.nccl]
        return NcclEndpoint(endpoint, self._calls, peers, self._limits)

    def close(self) -> None:
        """As `Listener.close`."""
        self._listener.close()


class NcclEndpoint:
    """A rank that is one GPU; see `Endpoint`. `recv` returns a `jax.Array` of that GPU."""

    def __init__(self, sockets: TcpEndpoint, calls: Calls, peers: Sequence[int], limits: Limits):
        self._sockets, self._calls, self._limits = sockets, calls, limits
        self._pairs = {peer: _Pair(sockets, calls, peer, limits) for peer in peers}

    @property
    def rank(self) -> int:
        """This rank."""
        return self._sockets.rank

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self._sockets.world

    def send(self, tag: str, array: Any, to: int) -> None:
        """As `Endpoint.send`; arrays that are not on this GPU are put there first."""
        pair = self._pairs.get(to)
        if pair is None:
            self._sockets.send(tag, array, to)
        else:
            pair.send(tag, self._calls.put(array))

    def recv(
        self, tag: str, shape: Sequence[int], dtype: DTypeLike, source: int, *, into: np.ndarray | None = None
    ) -> "jax.Array":
        """As `Endpoint.recv`, but for `into`, which a `jax.Array` cannot be."""
        asked = message.header(tag, shape, dtype)
        if into is not None:
            raise DestinationError(tag, f"a {type(into).__name__} on a rank that is a GPU", "and None there")
        pair = self._pairs.get(source)
        if pair is None:
            return self._calls.put(self._sockets.recv(tag, shape, dtype, source))
        return pair.recv(asked)

    def close(self) -> None:
        """As `Endpoint.close`."""
        for pair in self._pairs.values():
            pair.stop()
        self._sockets.close()
        for pair in self._pairs.values():
            pair.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Pair:
    """The two directions between this rank and another."""

    def __init__(self, sockets: TcpEndpoint, calls: Calls, peer: int, limits: Limits):
        self._sockets, self._calls, self._peer, self._limits = sockets, calls, peer, limits
        self._sending = threading.Lock()
        self._out: Any = None
        self._changed = threading.Condition()
        # All below is read and written with `_changed` held.
        self._arrived: dict[str, deque[tuple[message.Header, int, jax.Array]]] = {}
        self._held_bytes = self._waiting = 0
        self._failure: TransportError | None = None
        self._stopped = False
        self._reader = threading.Thread(target=self._read, name=f"arrays from GPU rank {peer}", daemon=True)
        self._reader.start()

    def send(self, tag: str, array: "jax.Array") -> None:
        head = json.dumps([tag, message.native(array.dtype).name, array.shape, array.nbytes]).encode()
        with self._sending:
            self._sockets.send(_HEAD_SIZE, np.array(len(head)), self._peer)
            self._sockets.send(_HEAD, np.frombuffer(head, np.uint8), self._peer)
            if not array.nbytes:
                return
            if self._out is None:
                name = self._calls.unique_id()
                self._sockets.send(_ID, np.frombuffer(name.ljust(128, b"\0"), np.uint8), self._peer)
                self._out = self._calls.communicator(name, _SENDS)
            self._finish(self._out, self._calls.start_send(self._out, array, _RECEIVES), f"sending {tag!r} to")

    def recv(self, asked: message.Header) -> "jax.Array":
        end = time.monotonic() + self._limits.wait_s
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            try:
                while asked.tag not in self._arrived:
                    if self._failure is not None:
                        raise self._failure
                    if not self._changed.wait(end - time.monotonic()) and asked.tag not in self._arrived:
                        raise TransportTimeoutError(
                            f"receiving {asked.tag!r} from rank {self._peer}: it did not come within "
                            f"{self._limits.wait_s:g} s"
                        )
            finally:
                self._waiting -= 1
            found, size_bytes, array = self._arrived[asked.tag].popleft()
            if not self._arrived[asked.tag]:
                del self._arrived[asked.tag]
            self._held_bytes -= size_bytes
            self._changed.notify_all()
        if found != asked:
            raise ArrayMismatchError(asked.tag, self._peer, str(found), str(asked))
        return array

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def close(self) -> None:
        self._reader.join()
        with self._sending:
            if self._out is not None:
                self._calls.abort(self._out)
                self._out = None

    def _read(self) -> None:
        group: Any = None
        try:
            while True:
                head, size_bytes = self._next_head()
                if size_bytes:
                    if group is None:
                        name = self._sockets.recv(_ID, (128,), np.uint8, self._peer)
                        group = self._calls.communicator(name.tobytes(), _RECEIVES)
                    done, array = self._calls.start_recv(group, head, _SENDS)
                    self._finish(group, done, "receiving from")
                    taken = array()
                else:
                    taken = self._calls.put(np.empty(head.shape, np.dtype(head.dtype)))
                with self._changed:
                    self._arrived.setdefault(head.tag, deque()).append((head, size_bytes, taken))
                    self._held_bytes += size_bytes
                    self._changed.notify_all()
        except TransportError as error:
            failure = error
        except Exception as error:  # noqa: BLE001  (of cupy or NCCL: told to whom it concerns)
            failure = PeerLostError(self._peer, "receiving from", f"{type(error).__name__}: {error}")
        with self._changed:
            self._failure = failure
            self._changed.notify_all()
        if group is not None:
            self._calls.abort(group)

    def _next_head(self) -> tuple[message.Header, int]:
        # Not while what nobody asked for fills the buffer and nobody waits.
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or self._waiting > 0 or self._held_bytes < self._limits.buffer_bytes
            )
        while True:
            try:
                size = self._sockets.recv(_HEAD_SIZE, (), np.int64, self._peer)
            except TransportTimeoutError:
                continue  # nothing is sent: that may last
            head = self._sockets.recv(_HEAD, (int(size),), np.uint8, self._peer)
            tag, dtype, shape, size_bytes = json.loads(head.tobytes())
            return message.Header(tag, dtype, tuple(shape)), size_bytes

    def _finish(self, group: Any, done: Callable[[], bool], doing: str) -> None:
        end = time.monotonic() + self._limits.wait_s
        while not done():
            with self._changed:
                failure = self._failure
                stopped = self._stopped
            if failure is None and not stopped and time.monotonic() < end:
                time.sleep(_POLL_S)
                continue
            self._calls.abort(group)
            if group is self._out:
                self._out = None
            if failure is not None:
                raise failure
            why = "this rank has closed its endpoint" if stopped else f"nothing for {self._limits.wait_s:g} s"
            raise PeerLostError(self._peer, doing, why)


def _carrier(dtype: np.dtype) -> np.dtype:
    # cupy and NCCL need no dtype, only bytes, and DLPack knows not all that JAX has.
    return dtype if dtype.kind in "iufc" else np.dtype(f"u{dtype.itemsize}")


def carried(array: "jax.Array") -> "jax.Array":
    """The array as one of a dtype that DLPack and cupy know, of the same bytes."""
    return array.view(_carrier(array.dtype))
