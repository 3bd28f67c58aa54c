"""Arrays between GPUs: the protocol around NCCL, with calls that need no GPU, and cupy's on one."""

import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_on_jax.ray_mesh.transport import (
    ArrayMismatchError,
    DestinationError,
    Limits,
    PeerLostError,
    TransportTimeoutError,
    nccl,
    new_token,
)
from alpa_on_jax.ray_mesh.transport.tcp import TcpListener


class CallsInMemory:
    """Stands for a GPU: as with NCCL, both sides must call in the same order, and a send ends with its receive."""

    groups: dict[bytes, queue.Queue[Any]] = {}  # noqa: RUF012  (all ranks of the process meet in it)

    def unique_id(self) -> bytes:
        name = new_token()
        self.groups[name.ljust(128, b"\0")] = queue.Queue()
        return name

    def communicator(self, unique_id: bytes, rank: int) -> queue.Queue[Any]:
        return self.groups[unique_id.ljust(128, b"\0")]

    def start_send(self, communicator: Any, array: jax.Array, to: int) -> Callable[[], bool]:
        taken: list[bool] = []
        communicator.put((array, taken))
        return lambda: bool(taken)

    def start_recv(self, communicator: Any, head: Any, source: int) -> tuple[Callable[[], bool], Callable[[], Any]]:
        got: list[jax.Array] = []

        def done() -> bool:
            if not got and not communicator.empty():
                array, taken = communicator.get()
                got.append(array)
                taken.append(True)
            return bool(got)

        return done, lambda: got[0]

    def put(self, array: Any) -> jax.Array:
        return jnp.asarray(array)

    def abort(self, communicator: Any) -> None:
        communicator.put(None)


Connect = Callable[..., Sequence[Any]]


@pytest.fixture
def connect_gpus() -> Iterator[Connect]:
    opened: list[Any] = []

    def connect(gpus: Sequence[bool] = (True, True), **limits: float) -> Sequence[Any]:
        allowed = Limits(**limits)
        listeners: list[Any] = [TcpListener("127.0.0.1", allowed) for _ in gpus]
        for rank, gpu in enumerate(gpus):
            if gpu:
                listeners[rank] = nccl.NcclListener(listeners[rank], CallsInMemory(), allowed)
        addresses, token = [listener.address for listener in listeners], new_token()
        with ThreadPoolExecutor(len(gpus)) as pool:
            opened.extend(pool.map(lambda rank: listeners[rank].open(rank, addresses, token), range(len(gpus))))
        return opened[-len(gpus) :]

    yield connect
    for endpoint in opened:
        endpoint.close()


def test_tags_are_received_in_any_order_and_both_sides_may_send_first(connect_gpus):
    ends = connect_gpus()

    def exchange(rank: int) -> list[int]:
        for number in range(4):
            ends[rank].send(f"t/{number}", jnp.full((2, 3), number, jnp.bfloat16), 1 - rank)
        got = [ends[rank].recv(f"t/{number}", (2, 3), jnp.bfloat16, 1 - rank) for number in (3, 1, 0, 2)]
        assert all(isinstance(array, jax.Array) and array.dtype == jnp.bfloat16 for array in got)
        return [int(array[1, 2]) for array in got]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(exchange, range(2))) == [[3, 1, 0, 2]] * 2


def test_arrays_without_elements_need_no_communicator(connect_gpus):
    zero, one = connect_gpus()
    zero.send("t", jnp.ones((0, 3), jnp.int8), 1)
    assert one.recv("t", (0, 3), jnp.int8, 0).shape == (0, 3)


def test_between_a_gpu_and_a_rank_without_arrays_go_by_sockets_both_ways(connect_gpus):
    gpu, host = connect_gpus((True, False))
    gpu.send("t", jnp.arange(3), 1)
    assert isinstance(host.recv("t", (3,), jnp.arange(3).dtype, 0), np.ndarray)
    host.send("t", np.ones(3, np.float32), 0)
    assert isinstance(gpu.recv("t", (3,), np.float32, 1), jax.Array)


def test_a_gpu_refuses_another_shape_and_an_array_to_receive_into(connect_gpus):
    zero, one = connect_gpus()
    zero.send("t", jnp.ones(2), 1)
    with pytest.raises(DestinationError, match="is a GPU"):
        one.recv("t", (2,), np.float32, 0, into=np.ones(2, np.float32))
    with pytest.raises(ArrayMismatchError, match=r"float32\[2\] was sent and float32\[3\]"):
        one.recv("t", (3,), np.float32, 0)


def test_a_gpu_waits_no_longer_than_the_limit_and_learns_at_once_that_the_other_has_closed(connect_gpus):
    zero, one = connect_gpus(wait_s=0.2)
    with pytest.raises(TransportTimeoutError, match=r"within 0\.2 s"):
        one.recv("t", (2,), np.float32, 0)
    zero.close()
    with pytest.raises(PeerLostError, match="it has closed its endpoint"):
        one.recv("t", (2,), np.float32, 0)


def test_cpu_devices_do_not_use_nccl():
    assert not nccl.usable(jax.devices("cpu")[0])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.bool_, jnp.int32])
def test_an_array_goes_to_cupy_and_back_without_a_change(dtype):
    device = jax.devices()[0]
    if not nccl.usable(device):
        pytest.skip("needs cupy with NCCL: the extra cuda12 or cuda13")
    cupy = pytest.importorskip("cupy")
    array = jnp.arange(12).reshape(3, 4).astype(dtype)
    there = cupy.from_dlpack(nccl.carried(array))
    back = jax.dlpack.from_dlpack(there).view(dtype)
    assert back.dtype == array.dtype
    assert bool((back == array).all())


@pytest.mark.gpu
def test_two_gpus_of_one_machine_exchange_arrays():
    devices = jax.devices()
    if len(devices) < 2 or not nccl.usable(devices[0]):
        pytest.skip("needs two GPUs, and cupy with NCCL")
    listeners = [nccl.NcclListener(TcpListener("127.0.0.1"), nccl.CupyCalls(d), Limits()) for d in devices[:2]]
    addresses, token = [listener.address for listener in listeners], new_token()

    def exchange(rank: int) -> float:
        with listeners[rank].open(rank, addresses, token) as endpoint:
            endpoint.send("t", jax.device_put(jnp.full((1 << 20,), rank, jnp.bfloat16), devices[rank]), 1 - rank)
            got = endpoint.recv("t", (1 << 20,), jnp.bfloat16, 1 - rank)
            endpoint.send("end", np.ones((), np.float32), 1 - rank)
            endpoint.recv("end", (), np.float32, 1 - rank)
            assert got.devices() == {devices[rank]}
            return float(got.mean())

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(exchange, range(2))) == [1.0, 0.0]
