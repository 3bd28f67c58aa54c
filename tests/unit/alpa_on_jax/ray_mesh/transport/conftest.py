"""Groups whose ranks are threads of this process or processes of their own, over both kinds of sockets."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from alpa_on_jax.ray_mesh.transport import Address, Endpoint, Limits, Listener, new_token

PEER = Path(__file__).parent / "peer.py"

Connect = Callable[..., Sequence[Endpoint]]


@pytest.fixture(params=["unix", "tcp"])
def local(request: pytest.FixtureRequest) -> bool:
    return request.param == "unix"


@pytest.fixture
def connect(local: bool) -> Iterator[Connect]:
    """Opens a group of some ranks in this process."""
    opened: list[Endpoint] = []

    def connect(world: int = 2, **limits: float) -> Sequence[Endpoint]:
        listeners = [Listener("127.0.0.1", Limits(**limits), local=local) for _ in range(world)]
        addresses, token = [listener.address for listener in listeners], new_token()
        with ThreadPoolExecutor(world) as pool:
            opened.extend(pool.map(lambda rank: listeners[rank].open(rank, addresses, token), range(world)))
        return opened[-world:]

    yield connect
    for endpoint in opened:
        endpoint.close()


@pytest.fixture
def process(local: bool) -> Iterator[Callable[..., tuple[Endpoint, subprocess.Popen]]]:
    """Starts rank 1, a process that does what `peer.py` calls by this name, and opens rank 0 here."""
    started: list[tuple[Endpoint, subprocess.Popen]] = []

    def start(does: str, **limits: float) -> tuple[Endpoint, subprocess.Popen]:
        listener = Listener("127.0.0.1", Limits(**limits), local=local)
        token, address = new_token(), listener.address
        child = subprocess.Popen(
            [sys.executable, str(PEER), does, address.ip, str(address.port), address.local, token.hex()],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        port, name = child.stdout.readline().rstrip("\n").split(" ")
        endpoint = listener.open(0, [address, Address("127.0.0.1", int(port), name)], token)
        started.append((endpoint, child))
        return endpoint, child

    yield start
    for endpoint, child in started:
        endpoint.close()
        child.kill()
        child.wait()
