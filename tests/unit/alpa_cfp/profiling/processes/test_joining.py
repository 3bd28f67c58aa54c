"""The processes of a mesh find each other, within a limit, and nobody else gets in. Here they are threads."""

import json
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from alpa_cfp.errors import ProcessesError
from alpa_cfp.profiling.processes.joining import Joined, join
from alpa_cfp.profiling.processes.peers import PeerLostError
from alpa_cfp.spmd.distributed import coordination

pytestmark = pytest.mark.slow


class Store:
    """A key-value store of this process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def put(self, key: str, value: bytes) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str, limit_s: float) -> bytes | None:
        with self.changed:
            self.changed.wait_for(lambda: key in self.values, limit_s)
            return self.values.get(key)

    def delete(self, key: str) -> None:
        with self.changed:
            self.values.pop(key, None)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store by which the processes of a test find each other."""
    store = Store()
    for name in ("put", "get", "delete"):
        monkeypatch.setattr(coordination, name, getattr(store, name))
    monkeypatch.setattr(coordination, "is_initialized", lambda: True)
    monkeypatch.setattr(coordination, "own_ip", lambda: "127.0.0.1")
    return store


def join_all(processes: Sequence[int], limit_s: float = 20.0) -> list[Joined]:
    with ThreadPoolExecutor(len(processes)) as threads:
        return list(threads.map(lambda own: join(processes, own, limit_s), processes))


def end(joined: Sequence[Joined]) -> None:
    peers = [peer for each in joined for peer in each.peers]
    for peer in peers:
        peer.end()
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("processes", [(0, 1), (0, 1, 2, 3), (5, 2, 7)])
def test_the_first_process_is_connected_to_all_others_in_order(store: Store, processes: tuple[int, ...]) -> None:
    first, *others = joined = join_all(processes)
    assert [member.process for member, _ in first.others] == list(processes[1:])
    for process, (other, peer) in zip(processes[1:], zip(others, first.peers, strict=True), strict=True):
        other.peers[0].send(0, f"from {process}")
        peer.send(0, f"to {process}")
        assert peer.receive() == f"from {process}"
        assert other.peers[0].receive() == f"to {process}"
    end(joined)
    assert store.values == {}


def test_processes_can_join_again(store: Store) -> None:
    for _ in range(3):
        end(join_all((0, 1)))
    assert store.values == {}


def test_processes_that_do_not_come_are_named_after_the_limit(store: Store) -> None:
    with ThreadPoolExecutor() as threads:
        came = threads.submit(join, (0, 1, 2, 3), 2, 20.0)
        with pytest.raises(ProcessesError, match="of these 1, 3 did not call autoshard within 1 s"):
            join((0, 1, 2, 3), 0, 1.0)
        # The one that has come hears of it.
        with pytest.raises(PeerLostError, match="of these 1, 3 did not") as caught:
            came.result().peers[0].receive()
    assert caught.value.failure is not None
    assert isinstance(caught.value.failure.original(), ProcessesError)
    end([came.result()])
    assert store.values == {}


def test_a_first_process_that_does_not_come_is_named_after_the_limit(store: Store) -> None:
    with pytest.raises(ProcessesError, match=r"of these 0 did not call autoshard within 0\.5 s"):
        join((0, 1), 1, 0.5)


def test_who_does_not_know_the_secret_gets_nowhere_and_keeps_nobody_out(store: Store) -> None:
    with ThreadPoolExecutor() as threads:
        first = threads.submit(join, (0, 1), 0, 20.0)
        while (found := store.get("alpa_cfp/autoshard/0,1", 20.0)) is None:
            pass
        address = json.loads(found)["ip"], json.loads(found)["port"]
        with socket.create_connection(address) as stranger:
            stranger.sendall(bytes(32))
            assert stranger.recv(1) == b""
        with socket.create_connection(address):
            pass
        second = join((0, 1), 1, 20.0)
        joined = [first.result(), second]
    assert [member.process for member, _ in joined[0].others] == [1]
    end(joined)


def test_an_address_of_an_earlier_wait_is_tried_until_there_is_a_new_one(store: Store) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    store.put("alpa_cfp/autoshard/0,1", json.dumps({"ip": "127.0.0.1", "port": port, "secret": ""}).encode())
    with ThreadPoolExecutor() as threads:
        second = threads.submit(join, (0, 1), 1, 20.0)
        first = join((0, 1), 0, 20.0)
        end([first, second.result()])


def test_processes_that_jax_has_not_connected_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordination, "is_initialized", lambda: False)
    with pytest.raises(ProcessesError, match="of the processes 0, 1, which cannot find each other"):
        join((0, 1), 0)
