"""GB/s from one process of this machine to another: what the transport does, and what could stand in its place.

Each process is one rank. A transfer is timed until a byte comes back that says that the array is there, in new memory,
as the transport's `recv` gives it. `results/transport-*` has the transport over TCP and over a Unix socket, and for
comparison shared memory that exists already (copied into and out of), `multiprocessing.connection`, and
`jax.experimental.transfer`. Size by size, every way once a round, in random order.
"""

import argparse
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from typing import Any

import jax
import numpy as np
from jax.experimental import transfer
from jax.sharding import SingleDeviceSharding

from alpa_cfp_bench.timing import interleave
from alpa_on_jax.ray_mesh.transport import Address, Endpoint, Listener
from benchmarks import runner

_IP = "127.0.0.1"
_TOKEN = bytes(32)  # of a benchmark
_MB = 10**6
_ROUNDS = {1: 60, 16: 30, 64: 20, 256: 12}
_ROUNDS_OTHERWISE = 10
_WAYS = ("TCP", "Unix socket", "shared memory", "multiprocessing", "jax transfer")
_TEXT = (
    "GB/s (10^9 bytes) of one array from one process to another on one machine, until a byte comes back that says that "
    "it is there in new memory: median, and between the quartiles. `TCP` and `Unix socket` are the transport "
    "(`alpa_on_jax.ray_mesh.transport`); the others are what could stand in its place: `shared memory` of the array's "
    "size that exists already, copied into and out of; `multiprocessing` is `multiprocessing.connection` over TCP; "
    "`jax transfer` is `jax.experimental.transfer`."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, or the process at the other end of it."""
    parser = runner.parser(__doc__, sizes=list(_ROUNDS), seed=0)
    parser.add_argument("--rounds", type=int, help="of each size (default: 60 for 1 MB to 12 for 256 MB)")
    parser.add_argument("--peer", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.peer:
        with socket.create_connection((_IP, options.peer)) as control:
            _Peer(control).serve()
        return 0
    results = measure(options.sizes, options.rounds, options.seed)
    table = [["MB", *_WAYS]]
    for size_mb in options.sizes:
        rows = {row["way"]: row for row in results if row["size_mb"] == size_mb}
        table.append([str(size_mb), *(_cell(rows[way]) for way in _WAYS)])
    return runner.finish("transport", _TEXT, results, table, options.no_results)


def measure(sizes_mb: Sequence[int], rounds: int | None, seed: int) -> list[dict[str, Any]]:
    """Start the other process and time all ways with arrays of these sizes."""
    results = []
    with socket.create_server((_IP, 0)) as server:
        command = [sys.executable, "-m", "benchmarks.transport", "--peer", str(server.getsockname()[1])]
        peer = subprocess.Popen(command)
        try:
            control, _ = server.accept()
            with control:
                sender = _Sender(control)
                for size_mb in sizes_mb:
                    count = rounds or _ROUNDS.get(size_mb, _ROUNDS_OTHERWISE)
                    samples = interleave(sender.ways(size_mb * _MB), count, seed=seed, after_round=sender.after_round)
                    results += [_row(way, size_mb, samples[way].seconds) for way in _WAYS]
        finally:
            peer.terminate()
            peer.wait()
    return results


class _Side:
    """The connections of one process: a socket for untimed messages, and one connection for each way."""

    def __init__(self, control: socket.socket, rank: int):
        control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._control = control
        self.endpoints = {way: self._open(rank, local=way == "Unix socket") for way in ("TCP", "Unix socket")}
        self.device = jax.devices()[0]
        # Without addresses for the transport the server aborts.
        self.transfers = transfer.start_transfer_server(self.device.client, f"{_IP}:0", [f"{_IP}:0"] * 4)

    def tell(self, text: str) -> None:
        """A line to the other process."""
        self._control.sendall(text.ljust(80).encode())

    def told(self) -> str:
        """A line from the other process."""
        text = self._control.recv(80, socket.MSG_WAITALL).decode()
        if not text:
            raise EOFError
        return text.strip()

    def _open(self, rank: int, *, local: bool) -> Endpoint:
        listener = Listener(_IP, local=local)
        mine = listener.address
        self.tell(f"{mine.port} {mine.local}")
        port, _, name = self.told().partition(" ")
        addresses = [mine, mine]
        addresses[1 - rank] = Address(_IP, int(port), name)
        return listener.open(rank, addresses, _TOKEN)


class _Sender(_Side):
    """Times each way."""

    def __init__(self, control: socket.socket):
        super().__init__(control, 0)
        with connection.Listener((_IP, 0), authkey=_TOKEN) as listener:
            self.tell(str(listener.address[1]))
            self._connection = listener.accept()
        self.tell(self.transfers.address())
        self._transfer = 0

    def ways(self, size: int) -> Mapping[str, Callable[[], None]]:
        """A function for each way that sends an array of this size and waits for the answer."""
        self._array = np.ones(size, np.uint8)
        self._on_device = jax.block_until_ready(jax.device_put(self._array, self.device))
        memory = os.memfd_create("transport")
        os.ftruncate(memory, size)
        self._shared = np.frombuffer(mmap.mmap(memory, size), np.uint8)
        self.tell(f"size {size} /proc/{os.getpid()}/fd/{memory}")
        self.told()
        os.close(memory)
        self.after_round()
        sends = (
            lambda: self.endpoints["TCP"].send("t", self._array, 1),
            lambda: self.endpoints["Unix socket"].send("t", self._array, 1),
            lambda: np.copyto(self._shared, self._array),
            lambda: self._connection.send_bytes(self._array.data),
            lambda: None,
        )
        return {way: lambda way=way, send=send: self._one(way, send) for way, send in zip(_WAYS, sends, strict=True)}

    def after_round(self) -> None:
        """Prepare the next array for `jax transfer`; this is not timed."""
        self._transfer += 1
        self.transfers.await_pull(self._transfer, [self._on_device])

    def _one(self, way: str, send: Callable[[], None]) -> None:
        # The shared memory has to be full before the other side reads it; all others wait for what comes.
        if way == "shared memory":
            send()
        self.tell(f"{way.replace(' ', '_')} {self._transfer}")
        if way != "shared memory":
            send()
        self.told()


class _Peer(_Side):
    """Receives what it is told to, and answers when it is there."""

    def __init__(self, control: socket.socket):
        super().__init__(control, 1)
        self._connection = connection.Client((_IP, int(self.told())), authkey=_TOKEN)
        self._remote = self.transfers.connect(self.told())

    def serve(self) -> None:
        """Until the other process ends."""
        shared = np.empty(0, np.uint8)
        while True:
            try:
                order, number, *name = self.told().split()
            except EOFError:
                return
            if order == "size":
                with open(name[0], "r+b") as memory:
                    shared = np.frombuffer(mmap.mmap(memory.fileno(), int(number)), np.uint8)
            else:
                array = self._receive(order.replace("_", " "), int(number), shared)
                if len(array) != len(shared):
                    raise ValueError(f"{len(array)} bytes came")
            self.tell("there")

    def _receive(self, way: str, number: int, shared: np.ndarray) -> Any:
        size = len(shared)
        if way in self.endpoints:
            return self.endpoints[way].recv("t", (size,), np.uint8, 0)
        if way == "jax transfer":
            described = jax.ShapeDtypeStruct((size,), np.uint8, sharding=SingleDeviceSharding(self.device))
            return jax.block_until_ready(self._remote.pull(number, [described]))[0]
        if way == "shared memory":
            return shared.copy()
        array = np.empty(size, np.uint8)
        self._connection.recv_bytes_into(array.data)
        return array


def _row(way: str, size_mb: int, seconds: Sequence[float]) -> dict[str, Any]:
    rates = size_mb * _MB / 1e9 / np.array(seconds)
    low, middle, high = np.percentile(rates, (25, 50, 75))
    return {
        "way": way,
        "size_mb": size_mb,
        "samples": len(seconds),
        "median_gb_per_s": round(float(middle), 3),
        "quartiles_gb_per_s": [round(float(low), 3), round(float(high), 3)],
        "extremes_gb_per_s": [round(float(rates.min()), 3), round(float(rates.max()), 3)],
    }


def _cell(row: Mapping[str, Any]) -> str:
    low, high = row["quartiles_gb_per_s"]
    return f"{row['median_gb_per_s']:.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    sys.exit(main())
