"""Errors of users, interrupts and closed pipes: how a command can end early.

Python raises KeyboardInterrupt wherever it happens to be. In a destructor or a callback of the garbage collector (JAX
has one) it prints the exception and goes on; a C extension that is being imported fails with another error. The context
managers here make sure that Ctrl-C still ends the command.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_AGAIN_S = 0.02


class UserError(Exception):
    """A wrong command line; the text says in one line what is wrong, why, and what to do."""


@contextlib.contextmanager
def lost_interrupts_come_again() -> Iterator[None]:
    """Sends an interrupt again, shortly after, if Python could not raise it where it came."""
    before = sys.unraisablehook

    def again(lost: "UnraisableHookArgs") -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            before(lost)
            return
        later = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT))
        later.daemon = True
        later.start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def interrupted_afterwards() -> Iterator[None]:
    """Delays Ctrl-C until the block has ended, whatever it raised."""
    if threading.current_thread() is not threading.main_thread():  # others are not interrupted
        yield
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            raise KeyboardInterrupt


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """Ends the block without an error if the reader of stdout has closed it: `alpa-cfp profiles list | head -1`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout again at exit, and would report the error.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
