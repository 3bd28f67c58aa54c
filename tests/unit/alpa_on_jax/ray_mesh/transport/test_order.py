"""Tags, order, and who may wait for whom."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@given(order=st.permutations(range(12)))
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tags_are_received_in_any_order(connect, order):
    zero, one = connect()
    for number in range(12):
        zero.send(f"tile/{number}", np.full(50, number), 1)
    assert [int(one.recv(f"tile/{number}", (50,), int, 0)[0]) for number in order] == order
    zero.close()
    one.close()


def test_arrays_of_one_tag_keep_their_order(connect):
    zero, one = connect()
    for number in range(20):
        zero.send("t", np.array(number), 1)
    assert [int(one.recv("t", (), int, 0)) for _ in range(20)] == list(range(20))


def test_both_sides_may_send_first(connect):
    ends = connect(wait_s=20)
    array = np.ones(4 << 20, np.uint8)  # more than the sockets hold

    def exchange(rank: int) -> int:
        for number in range(3):
            ends[rank].send(f"t/{number}", array, 1 - rank)
        return sum(int(ends[rank].recv(f"t/{number}", array.shape, np.uint8, 1 - rank)[-1]) for number in range(3))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(exchange, range(2))) == [3, 3]


def test_a_receiver_takes_what_is_behind_a_full_buffer(connect):
    zero, one = connect(buffer_bytes=100, wait_s=20)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(lambda: [zero.send(f"t/{number}", np.full(1 << 20, number), 1) for number in range(4)])
        assert [int(one.recv(f"t/{number}", (1 << 20,), int, 0)[0]) for number in (3, 0, 2, 1)] == [3, 0, 2, 1]
        sending.result()


def test_four_ranks_all_send_to_all(connect):
    ends = connect(4)

    def exchange(rank: int) -> list[int]:
        others = [peer for peer in range(4) if peer != rank]
        for peer in others:
            ends[rank].send("from", np.array(10 * rank + peer), peer)
        return [int(ends[rank].recv("from", (), int, peer)) for peer in others]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(exchange, range(4))) == [[10 * p + r for p in range(4) if p != r] for r in range(4)]


def test_threads_of_one_rank_send_and_receive_at_the_same_time(connect):
    zero, one = connect()
    with ThreadPoolExecutor(8) as pool:
        got = [pool.submit(one.recv, f"t/{n}", (1 << 18,), int, 0) for n in range(4)]
        for sent in [pool.submit(zero.send, f"t/{n}", np.full(1 << 18, n), 1) for n in range(4)]:
            sent.result()
        for number, array in enumerate(got):
            assert (array.result() == number).all()
