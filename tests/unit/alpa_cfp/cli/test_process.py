"""Ctrl-C comes through where Python or a library would lose it, and not before what must end has ended."""

import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from alpa_cfp.cli.process import interrupted_afterwards, lost_interrupts_come_again

# More than it can take; nothing waits for so long.
_LONG_S = 60.0


@pytest.fixture(autouse=True)
def is_interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, also where the tests run in the background of a shell, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Unlucky:
    """It is interrupted while it is taken away, where Python cannot raise."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_an_interruption_in_a_destructor_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    def lose_one_and_wait() -> None:
        Unlucky()
        threading.Event().wait(_LONG_S)

    with pytest.raises(KeyboardInterrupt), lost_interrupts_come_again():
        lose_one_and_wait()
    assert capsys.readouterr().err == ""


def test_other_errors_in_destructors_are_shown_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("broken")

    shown: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: shown.append(str(lost.exc_value)))
    before = sys.unraisablehook
    with lost_interrupts_come_again():
        Broken()
    assert shown == ["broken"]
    assert sys.unraisablehook is before


def test_a_block_ends_before_it_is_interrupted() -> None:
    done = []

    def be_interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append("all of it")

    with pytest.raises(KeyboardInterrupt), interrupted_afterwards():
        be_interrupted()
    assert done == ["all of it"]


def test_an_interruption_is_one_even_if_the_block_fails_for_it() -> None:
    def fail() -> None:
        signal.raise_signal(signal.SIGINT)
        raise ImportError("Encountered an error while initializing the extension.")

    with pytest.raises(KeyboardInterrupt), interrupted_afterwards():
        fail()


def test_a_block_without_ctrl_c_is_not_interrupted_and_the_next_one_can_be() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupted_afterwards():
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_than_the_main_one_needs_nothing() -> None:
    seen = []

    def run() -> None:
        with interrupted_afterwards():
            seen.append("ran")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == ["ran"]
