"""Who gets into a group."""

import contextlib
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from alpa_on_jax.ray_mesh.transport import (
    Address,
    Limits,
    Listener,
    RankError,
    TokenError,
    TransportError,
    TransportTimeoutError,
    handshake,
    new_token,
)


def _listeners(count: int, *, local: bool, open_s: float = 20) -> tuple[Sequence[Listener], list[Address]]:
    listeners = [Listener("127.0.0.1", Limits(open_s=open_s), local=local) for _ in range(count)]
    return listeners, [listener.address for listener in listeners]


def test_ranks_with_different_tokens_do_not_connect(local):
    (zero, one), addresses = _listeners(2, local=local, open_s=0.5)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(zero.open, 0, addresses, new_token())
        with pytest.raises(TokenError, match="does not know the token"):
            one.open(1, addresses, new_token())
        with pytest.raises(TransportTimeoutError, match=r"ranks \[1\].*1 connections were refused"):
            waiting.result()


def test_what_does_not_know_the_token_is_hung_up_on_and_the_group_opens_all_the_same(local):
    (zero, one), addresses = _listeners(2, local=local)
    token = new_token()
    strangers = [socket.create_connection(("127.0.0.1", addresses[0].port)) for _ in range(5)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100)
    strangers[1].close()
    # One that knows the protocol, and says that it is rank 1.
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(zero.open, 0, addresses, token)
        with pytest.raises(handshake.WrongTokenError):
            handshake.ask(strangers[2], new_token(), 1, 0, 2, 10)
        opened = one.open(1, addresses, token)
        with waiting.result() as endpoint, opened:
            opened.send("t", np.array(5), 0)
            assert endpoint.recv("t", (), int, 1) == 5
    strangers[0].settimeout(10)
    with contextlib.suppress(ConnectionResetError):
        assert strangers[0].recv(100) == b""
    for sock in strangers:
        sock.close()


def test_nothing_listens_any_more_once_the_group_is_open(connect, local):
    (zero, one), addresses = _listeners(2, local=local)
    token = new_token()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(zero.open, 0, addresses, token)
        with one.open(1, addresses, token), waiting.result():
            for address in addresses:
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", address.port))


def test_it_listens_on_the_given_address_only():
    listener = Listener("127.0.0.1")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", listener.address.port))
    listener.close()


def test_a_rank_that_nobody_listens_for_is_named_after_the_limit(local):
    (zero, one), addresses = _listeners(2, local=local, open_s=0.2)
    zero.close()
    with pytest.raises(TransportTimeoutError, match=r"rank 0 at 127\.0\.0\.1:.* could not be reached"):
        one.open(1, addresses, new_token())


@pytest.mark.parametrize(("rank", "shown"), [(1, "entry of that rank"), (2, "rank 2 of 2"), (-1, "rank -1 of 2")])
def test_a_rank_must_listen_where_the_group_is_told(rank, shown):
    (zero, one), addresses = _listeners(2, local=False)
    with pytest.raises(RankError, match=shown):
        zero.open(rank, addresses, new_token())
    zero.close()
    one.close()


def test_a_token_that_can_be_guessed_is_refused():
    listener = Listener("127.0.0.1")
    with pytest.raises(TransportError, match="the token has 6 bytes"):
        listener.open(0, [listener.address], b"secret")
    listener.close()


def test_processes_of_one_machine_use_unix_sockets_and_tcp_without_them(connect, local):
    zero, _ = connect()
    assert zero.paths == {1: "unix" if local else "tcp"}


def test_an_address_of_another_machine_is_reached_by_tcp():
    (zero, one), addresses = _listeners(2, local=True)
    # The name of a Unix socket of another machine means nothing here.
    elsewhere = Address(addresses[0].ip, addresses[0].port, new_token().hex())
    token = new_token()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(zero.open, 0, addresses, token)
        with one.open(1, [elsewhere, addresses[1]], token) as endpoint, waiting.result():
            assert endpoint.paths == {0: "tcp"}
