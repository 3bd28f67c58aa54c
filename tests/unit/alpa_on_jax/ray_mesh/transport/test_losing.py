"""Ranks that are killed, stopped, late or closed."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from alpa_on_jax.ray_mesh.transport import PeerLostError, TransportTimeoutError

pytestmark = pytest.mark.slow


def test_another_process_sends_an_array_back_doubled(process):
    endpoint, child = process("echo")
    array = np.random.default_rng(0).random((1000, 1000), np.float32)
    endpoint.send("there", array, 1)
    np.testing.assert_array_equal(endpoint.recv("back", array.shape, np.float32, 1), array * 2)
    endpoint.send("enough", np.int32(0), 1)
    assert child.wait(20) == 0


def test_a_killed_process_ends_a_wait_at_once_and_what_it_sent_before_is_still_received(process):
    endpoint, child = process("sleep")
    endpoint.recv("ready", (), int, 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(endpoint.recv, "never", (1,), int, 1)
        child.kill()
        child.wait()
        with pytest.raises(PeerLostError, match="process has ended"):
            waiting.result(timeout=5)  # of the 120 s that it may wait
    assert endpoint.recv("one", (3,), int, 1).tolist() == [0, 1, 2]
    with pytest.raises(PeerLostError, match="rank 1"):
        endpoint.send("t", np.ones(1), 1)


def test_a_send_to_a_stopped_process_ends_after_the_limit(process):
    endpoint, child = process("sleep", wait_s=0.3)
    endpoint.recv("ready", (), int, 1)
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(TransportTimeoutError, match=r"took nothing for 0\.3 s"):
        endpoint.send("t", np.ones(96 << 20, np.uint8), 1)
    with pytest.raises(PeerLostError, match="took nothing"):
        endpoint.send("t", np.ones(1), 1)


def test_a_process_killed_while_it_is_sent_to_ends_the_send_at_once(process):
    endpoint, child = process("sleep")
    endpoint.recv("ready", (), int, 1)
    os.kill(child.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(endpoint.send, "t", np.ones(96 << 20, np.uint8), 1)
        child.kill()
        with pytest.raises(PeerLostError, match="process has ended"):
            sending.result(timeout=5)


def test_an_array_that_does_not_come_is_an_error_that_names_what_came_instead(connect):
    zero, one = connect(wait_s=0.1)
    zero.send("grad/7", np.ones(1), 1)
    with pytest.raises(TransportTimeoutError, match="not been asked for: 'grad/7'"):
        _recv_after(one, "grad/7")
    with pytest.raises(TransportTimeoutError, match=r"within 0\.1 s"):
        zero.recv("t", (1,), float, 1)
    zero.send("t", np.ones(1), 1)
    assert one.recv("t", (1,), float, 0) == 1  # a late or missing array costs nothing but the wait


def _recv_after(endpoint, expected):
    # Asks for another tag until `expected` is there, since sending and reading are two threads.
    end = time.monotonic() + 10
    while True:
        try:
            endpoint.recv("t", (1,), float, 0)
        except TransportTimeoutError as error:
            if expected in str(error) or time.monotonic() > end:
                raise


def test_a_sender_waits_no_longer_than_the_limit_for_a_buffer_that_nobody_empties(connect):
    zero, _ = connect(wait_s=0.3, buffer_bytes=1 << 20)

    def send_many() -> None:
        for number in range(200):
            zero.send(f"t/{number}", np.ones(1 << 20, np.uint8), 1)

    with pytest.raises(TransportTimeoutError, match="raise `buffer_bytes`"):
        send_many()


def test_a_rank_that_closes_ends_the_waits_of_others_and_its_own(connect):
    zero, one = connect()
    with ThreadPoolExecutor(2) as pool:
        there, here = pool.submit(one.recv, "t", (1,), int, 0), pool.submit(zero.recv, "t", (1,), int, 1)
        zero.close()
        with pytest.raises(PeerLostError, match="it has closed its endpoint"):
            there.result(timeout=5)
        with pytest.raises(PeerLostError, match="this rank has closed its endpoint"):
            here.result(timeout=5)
    zero.close()


def test_what_was_sent_before_closing_is_received(connect):
    zero, one = connect()
    zero.send("t", np.arange(1 << 20), 1)
    zero.close()
    assert one.recv("t", (1 << 20,), int, 0)[-1] == (1 << 20) - 1
