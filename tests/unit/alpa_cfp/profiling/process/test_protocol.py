"""What the process that measures and the one that asks say to each other arrives, or fails without harm."""

import random
import socket
import subprocess
import sys

import pytest

from alpa_cfp.profiling.process.protocol import MeasureTask, MessageConnection, Ready


def ends() -> tuple[MessageConnection, MessageConnection]:
    one, other = socket.socketpair()
    return MessageConnection(one.detach()), MessageConnection(other.detach())


@pytest.mark.parametrize("message", [Ready("it has none"), MeasureTask((b"", b"x" * 100), 3, random.Random(1)), None])
def test_a_message_arrives_as_it_was_sent(message: object) -> None:
    one, other = ends()
    with one, other:
        one.send(message)
        arrived = other.recv()
    if isinstance(message, MeasureTask):  # a `Random` is equal to no other
        assert (arrived.modules, arrived.samples) == (message.modules, message.samples)
        assert arrived.rng.random() == message.rng.random()
    else:
        assert arrived == message


def test_where_the_other_end_is_gone_both_ways_fail_as_those_of_a_connection() -> None:
    one, other = ends()
    other.close()
    with one:
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            one.send(Ready())
        with pytest.raises((EOFError, ConnectionResetError)):
            one.recv()


def test_an_error_of_sending_is_garbage_like_any_other() -> None:
    code = """
import gc, socket
from alpa_cfp.profiling.process.protocol import MessageConnection, Ready
def fail():
    one, other = socket.socketpair()
    connection = MessageConnection(one.detach())
    other.close()
    with connection:
        try:
            connection.send(Ready())
        except OSError as error:
            cycle = [error]
            cycle.append(cycle)
for _ in range(3):
    fail()
    gc.collect()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
