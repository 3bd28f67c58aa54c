"""Connections of processes that plan together: what is sent arrives, and no wait outlives the other process."""

import os
import pickle
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.errors import NoRunnablePlanError, ProcessesError
from alpa_cfp.profiling.processes.peers import ChannelShutError, Failed, Peer, PeerLostError, end_all
from alpa_cfp.search import MemoryBudgetError

pytestmark = pytest.mark.slow

# In a test the other process is as good as silent after this.
_SILENCE_S = 1.0


def pair(silence_s: float = 30.0) -> tuple[Peer, Peer]:
    first, second = connected_sockets()
    return Peer(1, first, silence_s, beat_s=0.1), Peer(0, second, silence_s, beat_s=0.1)


def connected_sockets() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first = socket.create_connection(listener.getsockname())
        second, _ = listener.accept()
    return first, second


@pytest.fixture
def peers() -> Iterator[tuple[Peer, Peer]]:
    """The two ends of a connection."""
    both = pair()
    yield both
    for peer in both:
        peer.end()
    for peer in both:
        peer.close()


@given(st.lists(st.tuples(st.integers(1, 3), st.binary(max_size=100_000)), max_size=20))
def test_values_arrive_in_order_on_their_channels(sent: list[tuple[int, bytes]]) -> None:
    first, second = pair()
    for channel in (1, 2, 3):
        second.open(channel)
    for channel, value in sent:
        first.send(channel, value)
    arrived = {channel: [second.receive(channel) for to, _ in sent if to == channel] for channel in (1, 2, 3)}
    assert arrived == {channel: [value for to, value in sent if to == channel] for channel in (1, 2, 3)}
    first.end()
    second.close()
    first.close()


def test_what_is_sent_last_arrives_though_the_connection_is_ended(peers: tuple[Peer, Peer]) -> None:
    first, second = peers
    closing = threading.Thread(target=end_all, args=([first], bytes(10_000_000)))
    closing.start()
    assert len(second.receive()) == 10_000_000
    second.close()
    closing.join(10)
    assert not closing.is_alive()


def test_values_on_a_channel_that_is_not_open_are_dropped(peers: tuple[Peer, Peer]) -> None:
    first, second = peers
    first.send(7, "dropped")
    first.send(0, "kept")
    assert second.receive() == "kept"
    second.open(7)
    first.send(7, "later")
    assert second.receive(7) == "later"


def test_who_waits_on_a_channel_that_is_shut_stops_to_wait(peers: tuple[Peer, Peer]) -> None:
    first, _ = peers
    first.open(1)
    shutting = threading.Timer(0.1, first.shut, (1,))
    shutting.start()
    with pytest.raises(ChannelShutError):
        first.receive(1)


def test_a_process_that_ends_is_lost_on_all_channels_at_once(peers: tuple[Peer, Peer]) -> None:
    first, second = peers
    second.open(1)
    first.close(0)
    for channel in (0, 1, 0):
        with pytest.raises(PeerLostError, match="process 0: it ended"):
            second.receive(channel)
    with pytest.raises(PeerLostError):
        second.send(0, "nobody is there")
    second.open(2)
    with pytest.raises(PeerLostError):
        second.receive(2)


def test_a_process_that_is_silent_is_lost() -> None:
    silent, own = connected_sockets()
    peer = Peer(3, own, _SILENCE_S, beat_s=0.1)
    with pytest.raises(PeerLostError, match="process 3: it was silent for 1 s"):
        peer.receive()
    peer.close(0)
    silent.close()


def test_a_process_that_stops_in_the_middle_of_a_value_is_lost() -> None:
    silent, own = connected_sockets()
    peer = Peer(3, own, _SILENCE_S, beat_s=0.1)
    silent.sendall((1000).to_bytes(4, "big") + b"half")
    with pytest.raises(PeerLostError, match="silent"):
        peer.receive()
    peer.close(0)
    silent.close()


def test_a_process_that_says_only_that_it_is_there_is_not_lost() -> None:
    first, second = pair(_SILENCE_S)
    later = threading.Timer(3 * _SILENCE_S, first.send, (0, "at last"))
    later.start()
    assert second.receive() == "at last"
    first.end()
    second.close()
    first.close()


def test_a_failure_ends_what_the_other_process_waits_for(peers: tuple[Peer, Peer]) -> None:
    first, second = peers
    first.send(0, Failed.by(0, ValueError("wrong")))
    with pytest.raises(PeerLostError, match="ValueError: wrong") as caught:
        second.receive()
    assert caught.value.failure is not None
    assert caught.value.failure.original() is None  # it is no error of the package


@pytest.mark.parametrize(
    "error",
    [
        ProcessesError.failed(2, "it broke"),
        NoRunnablePlanError(["no memory"]),
        MemoryBudgetError(20, 10, (5, 5, 10), ("a", "b", "c")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_package_is_the_same_one_in_the_other_process(error: Exception) -> None:
    failed: Failed = pickle.loads(pickle.dumps(Failed.by(os.getpid(), error)))
    again = failed.original()
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))
